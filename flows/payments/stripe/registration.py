"""The check of the operator's Stripe account: the key's rights and the webhook endpoint.

Risks: the webhook endpoint has another address, is disabled or lacks event types, or the key lacks
a right that payments need. Without this check, the first person who pays would find out. Each right
is tested with a request that changes nothing: write rights are tested on an id that does not exist.
"""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from http import HTTPStatus

import httpx
import msgspec
from msgspec import Struct

from flows.elicitation.flow import Talk
from flows.payments.gateway import SetupFinding, SetupReport
from flows.payments.stripe.account import StripeAccount
from flows.payments.stripe.events import (
    DISPUTE_EVENTS,
    REFUND_EVENTS,
    REFUNDED,
    SETTLING_EVENTS,
)

EVENTS = SETTLING_EVENTS | DISPUTE_EVENTS | REFUND_EVENTS | {REFUNDED}
# The rights of a restricted key, as Stripe names them, and the request that tests each.
RIGHTS: Mapping[str, tuple[str, str]] = {
    "Checkout Sessions: write": ("POST", "/v1/checkout/sessions/cs_of_the_doctor/expire"),
    "PaymentIntents: read": ("GET", "/v1/payment_intents?limit=1"),
    "Charges: read": ("GET", "/v1/charges?limit=1"),
    "Refunds: write": ("POST", "/v1/refunds/re_of_the_doctor"),
    "Disputes: read": ("GET", "/v1/disputes?limit=1"),
}
# Rights that only improve this check; payments work without them.
RIGHTS_OF_THE_DOCTOR = ("Account: read", "Webhook Endpoints: read")
# All three read rights at once, as in each payment's fetch.
_WITH_CHARGE = "/v1/checkout/sessions?limit=1&expand[]=data.payment_intent.latest_charge"
_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_EVERYTHING = "*"
_KEYS = "https://dashboard.stripe.com/apikeys"
_KEY, _SECRET = "ELICIT_STRIPE_KEY", "ELICIT_STRIPE_WEBHOOK_SECRET"
_PAGE = "https://dashboard.stripe.com/webhooks"


class _Account(Struct, frozen=True, kw_only=True):
    id: str


class _Endpoint(Struct, frozen=True, kw_only=True):
    url: str
    status: str
    enabled_events: tuple[str, ...]


class _Endpoints(Struct, frozen=True, kw_only=True):
    data: tuple[_Endpoint, ...]


def examined(
    seller: StripeAccount, url: str | None, *, request: Callable[[str, str], httpx.Request]
) -> Talk[SetupReport]:
    """Check the account. `url` is the webhook address, or None if webhooks cannot reach us."""
    reply = yield request("GET", "/v1/account")
    reported_at = reply.headers.get("date")
    if reply.status_code == HTTPStatus.UNAUTHORIZED:
        wrong = SetupFinding(
            says=f"{seller.label} rejects the key.",
            fix=f"set {_KEY} to a secret key from {_KEYS}",
        )
        return SetupReport(findings=(wrong,), told_at=reported_at)
    found = [_of_account(reply, seller)]
    tried: dict[str, int] = {}
    for right, (method, path) in RIGHTS.items():
        tried[right] = (yield request(method, path)).status_code
    status = (yield request("GET", _WITH_CHARGE)).status_code
    found.append(_of_rights(tried, status, seller))
    if url is not None:
        listed = yield request("GET", "/v1/webhook_endpoints?limit=100")
        found += _of_endpoints(listed, url, seller)
    return SetupReport(findings=tuple(found), told_at=reported_at)


def _of_rights(tried: Mapping[str, int], charge_status: int, seller: StripeAccount) -> SetupFinding:
    """Report missing rights.

    `charge_status` is the status of a request that needs all read rights.
    """
    lacking = [right for right, status in tried.items() if status in _REFUSED]
    if lacking or charge_status in _REFUSED:
        named = ", ".join(lacking) or "one of " + ", ".join(RIGHTS)
        return SetupFinding(
            says=f"The key lacks a permission at {seller.label} that payments need: {named}.",
            fix=f"add this permission to the key at {_KEYS}, or set {_KEY} to a key that has it",
        )
    known = (HTTPStatus.OK, HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND)
    unclear = [right for right, status in tried.items() if status not in known]
    if unclear or charge_status != HTTPStatus.OK:
        says = f"{seller.label} did not report the permissions of the key."
        return SetupFinding(says=says, fix="run elicit doctor again", is_wrong=False)
    return SetupFinding(says="The key has all permissions that payments need.")


def _of_account(reply: httpx.Response, seller: StripeAccount) -> SetupFinding:
    mode = "live" if seller.is_live else "test"
    if reply.status_code == HTTPStatus.FORBIDDEN:
        return SetupFinding(
            says=f"{seller.label} accepts the key ({mode}), but the key cannot read its account."
        )
    try:
        id = msgspec.json.decode(reply.content, type=_Account).id
    except msgspec.MsgspecError:
        return SetupFinding(
            says=f"{seller.label} returns HTTP {reply.status_code}.",
            fix=f"check https://status.stripe.com, and the key in {_KEY}",
        )
    return SetupFinding(says=f"{seller.label} accepts the key ({mode}) of account {id}.")


def _of_endpoints(reply: httpx.Response, url: str, seller: StripeAccount) -> list[SetupFinding]:
    if reply.status_code in _REFUSED:
        says = f"The key cannot check if {seller.label} sends webhooks to {url}."
        fix = "let the key read webhook endpoints, or check them at " + _PAGE
        return [SetupFinding(says=says, fix=fix, is_wrong=False)]
    try:
        listed = msgspec.json.decode(reply.content, type=_Endpoints).data
    except msgspec.MsgspecError:
        says = f"{seller.label} does not list its webhook endpoints (HTTP {reply.status_code})."
        return [SetupFinding(says=says, fix=f"check them at {_PAGE}", is_wrong=False)]
    ours = [one for one in listed if one.url == url]
    if not ours:
        others = ", ".join(sorted(one.url for one in listed)) or "none"
        return [
            SetupFinding(
                says=f"{seller.label} has no webhook endpoint {url} (it has: {others}).",
                fix=f"create one at {_PAGE} for that address, with {_listed(EVENTS)}, and set "
                f"{_SECRET} to its signing secret",
            )
        ]
    enabled = [one for one in ours if one.status == "enabled"]
    if not enabled:
        return [
            SetupFinding(
                says=f"The webhook endpoint {url} at {seller.label} is disabled.",
                fix=f"enable it at {_PAGE}, once {seller.label} can reach ELICIT_URL",
            )
        ]
    sent = {event for one in enabled for event in one.enabled_events}
    if lacking := (set[str]() if _EVERYTHING in sent else EVENTS - sent):
        return [
            SetupFinding(
                says=f"{seller.label} does not send all events that payments need to {url}.",
                fix=f"add these events to the endpoint at {_PAGE}: {_listed(lacking)}",
            )
        ]
    return [SetupFinding(says=f"{seller.label} sends all events that payments need to {url}.")]


def _listed(events: AbstractSet[str]) -> str:
    return ", ".join(sorted(events))
