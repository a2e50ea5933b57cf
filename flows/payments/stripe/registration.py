"""What Stripe says of our registration there: the key, and the endpoint that it tells of payments.

What could go wrong: a webhook endpoint for another address, one that is switched off, or one that
is not sent what settles a payment; each is found out by the first person who pays.
"""

from collections.abc import Set as AbstractSet

import httpx
import msgspec
from msgspec import Struct

from flows.elicitation.flow import Talk
from flows.payments.gateway import SetupFinding, SetupReport
from flows.payments.stripe.account import StripeAccount
from flows.payments.stripe.events import DISPUTE_EVENTS, REFUNDED, SETTLING_EVENTS

EVENTS = SETTLING_EVENTS | DISPUTE_EVENTS | {REFUNDED}
_EVERYTHING = "*"
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
    seller: StripeAccount, url: str | None, *, account: httpx.Request, endpoints: httpx.Request
) -> Talk[SetupReport]:
    """`url` is where webhooks are to go; None: they cannot reach us, which is known."""
    reply = yield account
    told_at = reply.headers.get("date")
    if reply.status_code == 401:
        wrong = SetupFinding(
            says=f"{seller.label} does not know the key.",
            fix=f"set {_KEY} to a secret key from https://dashboard.stripe.com/apikeys",
        )
        return SetupReport(findings=(wrong,), told_at=told_at)
    found = [_of_account(reply, seller)]
    if url is not None:
        found += _of_endpoints((yield endpoints), url, seller)
    return SetupReport(findings=tuple(found), told_at=told_at)


def _of_account(reply: httpx.Response, seller: StripeAccount) -> SetupFinding:
    mode = "live" if seller.is_live else "test"
    if reply.status_code == 403:
        return SetupFinding(
            says=f"{seller.label} takes the key ({mode}), which may not tell whose."
        )
    try:
        id = msgspec.json.decode(reply.content, type=_Account).id
    except msgspec.MsgspecError:
        return SetupFinding(
            says=f"{seller.label} answers HTTP {reply.status_code}.",
            fix=f"look at https://status.stripe.com, and at the key in {_KEY}",
        )
    return SetupFinding(says=f"{seller.label} takes the key ({mode}) of account {id}.")


def _of_endpoints(reply: httpx.Response, url: str, seller: StripeAccount) -> list[SetupFinding]:
    if reply.status_code in (401, 403):
        says = f"Whether {seller.label} sends webhooks to {url} cannot be asked with this key."
        fix = "let it read webhook endpoints, or look there: " + _PAGE
        return [SetupFinding(says=says, fix=fix, is_wrong=False)]
    try:
        listed = msgspec.json.decode(reply.content, type=_Endpoints).data
    except msgspec.MsgspecError:
        says = f"{seller.label} does not list its webhook endpoints (HTTP {reply.status_code})."
        return [SetupFinding(says=says, fix=f"look there: {_PAGE}", is_wrong=False)]
    ours = [one for one in listed if one.url == url]
    if not ours:
        others = ", ".join(sorted(one.url for one in listed)) or "none"
        return [
            SetupFinding(
                says=f"{seller.label} has no webhook endpoint {url} (it has: {others}).",
                fix=f"make one at {_PAGE} for that address, with {_listed(EVENTS)}, and set "
                f"{_SECRET} to its signing secret",
            )
        ]
    enabled = [one for one in ours if one.status == "enabled"]
    if not enabled:
        return [
            SetupFinding(
                says=f"{seller.label} has switched its webhook endpoint {url} off.",
                fix=f"switch it on at {_PAGE}, once ELICIT_URL is reached from there",
            )
        ]
    sent = {event for one in enabled for event in one.enabled_events}
    if lacking := (set[str]() if _EVERYTHING in sent else EVENTS - sent):
        return [
            SetupFinding(
                says=f"{seller.label} does not send all that is needed to {url}.",
                fix=f"add to that endpoint at {_PAGE}: {_listed(lacking)}",
            )
        ]
    return [SetupFinding(says=f"{seller.label} sends all that is needed to {url}.")]


def _listed(events: AbstractSet[str]) -> str:
    return ", ".join(sorted(events))
