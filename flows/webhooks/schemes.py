"""The schemes by which senders sign their webhooks: a declaration for each.

What could go wrong: a header, a border or a key that is read otherwise than its sender writes it.
So the schemes are tested against their senders' own libraries and published examples, but Mollie's
and Lemon Squeezy's, which are as their documentation has them. What is no row here has a verifier
of its own: Adyen's items, PayPal's certificates, and Mollie's older notices, which nothing signs.
"""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, Literal

TOLERANCE: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How one sender signs.

    A header's value is `separator`-ed parts, each behind its label; parts with other labels are
    ignored. `families` are the beginnings that all of the header names have, in order of choice.
    """

    name: str
    signature_header: str
    signature_label: str = ""
    separator: str | None = None
    is_repeatable: bool = False  # whether the header may come several times: a list, RFC 9110, 5.3
    time_label: str | None = None  # where the time is a part of the signature's header
    time_header: str | None = None  # where it has its own
    id_header: str | None = None
    families: tuple[str, ...] = ("",)
    message: str = "{body}"  # over {id} {ts} {body} {url}; only what is in it is believed
    encoding: Literal["hex", "base64"] = "hex"
    digest: str = "sha256"
    key: Literal["utf-8", "base64", "hex"] = "utf-8"
    key_prefix: str = ""  # not a part of the key
    ed25519_label: str | None = None
    ed25519_key_prefix: str = "whpk_"
    tolerance: timedelta = TOLERANCE  # both ways: clocks err both ways
    accepted: str | None = None  # the very text that tells it that a delivery has arrived

    def __post_init__(self) -> None:
        has_time = self.time_label is not None or self.time_header is not None
        if has_time != ("{ts}" in self.message) or (self.id_header is None) == (
            "{id}" in self.message
        ):
            raise ValueError("a scheme reads a time or an id exactly where its message signs it")


STRIPE: Final = Scheme(
    name="stripe",
    signature_header="stripe-signature",
    signature_label="v1=",
    separator=",",
    time_label="t=",
    message="{ts}.{body}",
)
STANDARD_WEBHOOKS: Final = Scheme(
    name="standard-webhooks",
    signature_header="signature",
    signature_label="v1,",
    separator=" ",
    time_header="timestamp",
    id_header="id",
    families=("webhook-", "svix-"),
    message="{id}.{ts}.{body}",
    encoding="base64",
    key="base64",
    key_prefix="whsec_",
    ed25519_label="v1a,",
)
GITHUB: Final = Scheme(
    name="github", signature_header="x-hub-signature-256", signature_label="sha256="
)
PADDLE: Final = Scheme(
    name="paddle",
    signature_header="paddle-signature",
    signature_label="h1=",
    separator=";",
    time_label="ts=",
    message="{ts}:{body}",
    tolerance=timedelta(seconds=5),  # as Paddle's own library has it
)
# Polar's secret is text that only looks like base64: it is the key as it is written.
POLAR: Final = replace(
    STANDARD_WEBHOOKS, name="polar", key="utf-8", key_prefix="", ed25519_label=None
)
SQUARE: Final = Scheme(
    name="square",
    signature_header="x-square-hmacsha256-signature",
    message="{url}{body}",
    encoding="base64",
)
COINBASE: Final = Scheme(name="coinbase", signature_header="x-cc-webhook-signature")
MOLLIE: Final = Scheme(
    name="mollie",
    signature_header="x-mollie-signature",
    signature_label="sha256=",
    separator=",",
    is_repeatable=True,  # for the day on which a secret is rotated
)
LEMON_SQUEEZY: Final = Scheme(name="lemon-squeezy", signature_header="x-signature")
SCHEMES: Final = (
    STRIPE,
    STANDARD_WEBHOOKS,
    GITHUB,
    PADDLE,
    POLAR,
    SQUARE,
    COINBASE,
    MOLLIE,
    LEMON_SQUEEZY,
)
