"""A signer for each webhook scheme.

The signers and the verifier share no code, so a bug of one cannot hide a bug of the other.
"""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from flows.payments.mollie.gateway import MOLLIE
from flows.payments.stripe.gateway import STRIPE
from flows.providers.github import GITHUB
from flows.webhooks.signatures import STANDARD_WEBHOOKS, Scheme
from tests.support import signing
from tests.support.signing import Headers
from webapp.settings.config_file import read_declarations

EXAMPLES = {
    file.stem: read_declarations(file.read_text("utf-8"), source=file.name).sellers[file.stem]
    for file in sorted((Path(__file__).parents[2] / "examples" / "payments").iterdir())
}
# The schemes that tables of examples/payments describe.
COINBASE, LEMON_SQUEEZY, PADDLE, SQUARE = (
    EXAMPLES[name].scheme for name in ("coinbase", "lemon_squeezy", "paddle", "square")
)
URL = "https://elicit.example/webhooks/square"
SIGNERS: dict[Scheme, Callable[[bytes, str, datetime], Headers]] = {
    STRIPE: lambda body, secret, now: signing.stripe(body, secret=secret, now=now),
    STANDARD_WEBHOOKS: lambda body, secret, now: signing.standard_webhooks(
        body, secret=secret, now=now, id="msg_1"
    ),
    GITHUB: lambda body, secret, _: signing.github(body, secret=secret),
    PADDLE: lambda body, secret, now: signing.paddle(body, secret=secret, now=now),
    SQUARE: lambda body, secret, _: signing.square(body, secret=secret, url=URL),
    COINBASE: lambda body, secret, _: signing.coinbase(body, secret=secret),
    MOLLIE: lambda body, secret, _: signing.mollie(body, secrets=[secret]),
    LEMON_SQUEEZY: lambda body, secret, _: signing.lemon_squeezy(body, secret=secret),
}
