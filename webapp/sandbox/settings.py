"""The settings of a sandbox: its address, the server that it serves, and its secrets.

Risks: if strangers could reach a sandbox, its made-up accounts and payments would count as real. So
both the sandbox and the server that it serves must be on loopback.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from flows.origin import is_loopback
from flows.payments.gateway import MerchantAccount
from flows.payments.mollie.gateway import MollieAccount, sandbox_mollie
from flows.payments.paypal.gateway import PayPalAccount, sandbox_paypal
from flows.payments.stripe.gateway import sandbox_stripe
from webapp.http.address import PLAIN_PATH
from webapp.sandbox.paypal.certificates import sandbox_scheme

_SECRET_BYTES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """The settings of a sandbox.

    No URL ends with a slash. The URL of the server (`serves`) can have a path.
    """

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    serves: str
    redirect_origins: tuple[str, ...]
    stripe_key: str = field(repr=False)
    webhook_secret: str = field(repr=False)
    webhook_url: str
    paypal_secret: str = field(repr=False)
    paypal_webhook_id: str
    mollie_key: str = field(repr=False)

    @property
    def paypal_webhook_url(self) -> str:
        return f"{self.serves}/webhooks/paypal"

    def merchant_accounts(self) -> Mapping[str, MerchantAccount]:
        """Return the merchant accounts at all payment providers of the sandbox."""
        stripe = sandbox_stripe(f"{self.url}/stripe", self.stripe_key, [self.webhook_secret])
        return {seller.name: seller for seller in (stripe, self.paypal(), self.mollie())}

    def paypal(self) -> PayPalAccount:
        """Return the merchant account at the sandbox's PayPal, with its certificate authority."""
        return sandbox_paypal(
            f"{self.url}/paypal",
            self.client_id,
            self.paypal_secret,
            webhook_ids=(self.paypal_webhook_id,),
            certificates=sandbox_scheme(self.url),
        )

    def mollie(self) -> MollieAccount:
        """Return the merchant account at the sandbox's Mollie, with the URL of its webhooks."""
        webhook_url = f"{self.serves}/webhooks/mollie"
        return sandbox_mollie(f"{self.url}/mollie", self.mollie_key, webhook_url=webhook_url)


def new_sandbox(*, url: str, serves: str) -> Sandbox:
    """Make the settings of a sandbox at `url` for the server at `serves`, with random secrets.

    Raises:
        ValueError: A URL is not at a loopback origin like http://127.0.0.1:8766. The URL of the
            server can have a path.
    """
    origin = "/".join(serves.split("/")[:3])
    if not PLAIN_PATH.fullmatch(serves.removeprefix(origin)):
        raise ValueError(f"The sandbox needs a server with a plain path, and not {serves!r}.")
    require_loopback(url)
    require_loopback(origin)
    return Sandbox(
        url=url,
        # Accounts end with their sandbox: a new client id keeps later sandboxes from using them.
        client_id=f"elicit-sandbox-{secrets.token_hex(4)}",
        client_secret=secrets.token_urlsafe(_SECRET_BYTES),
        serves=serves,
        redirect_origins=(origin,),
        stripe_key=f"sk_test_sandbox_{secrets.token_hex(_SECRET_BYTES)}",
        webhook_secret=f"whsec_{secrets.token_urlsafe(_SECRET_BYTES)}",
        webhook_url=f"{serves}/webhooks/stripe",
        paypal_secret=secrets.token_urlsafe(_SECRET_BYTES),
        paypal_webhook_id=secrets.token_hex(8).upper(),
        mollie_key=f"test_{secrets.token_hex(_SECRET_BYTES)}",
    )


def require_loopback(url: str) -> None:
    """Check that a URL is an http origin of this machine.

    Raises:
        ValueError: The URL is not such an origin.
    """
    if not _is_loopback(url):
        raise ValueError(
            f"The sandbox works only on this machine, and {url!r} is not an address like "
            "http://127.0.0.1:8766."
        )


def _is_loopback(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return False
    is_origin = url == f"http://{parts.netloc}" and "@" not in url and port != 0
    return is_origin and host is not None and is_loopback(host)
