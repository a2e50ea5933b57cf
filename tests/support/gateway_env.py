"""Shared parts of the payment providers' tests: a question, its attempt, and a talk."""

from datetime import timedelta
from typing import Any, TypeVar

import httpx
import msgspec
from msgspec.structs import replace

from flows.elicitation.flow import RedirectContext, Talk
from flows.elicitation.states import Asked, Attempt, Elicitation, Status
from flows.payments.gateway import Gateway
from flows.payments.money import Money
from flows.payments.receipt import Payment
from flows.payments.session import CheckoutTerms, StoredCheckout
from tests.support.clock import NOON

T = TypeVar("T")
ID = "ownertag-e_1"
BACK = "https://elicit.example/return/x"
TRIP = RedirectContext(number=1, return_url=BACK, state="s-1", now=NOON)
NINE = Money("9.00", "EUR")


def asked(seller: str, price: Money = NINE, **terms: Any) -> Elicitation:
    checkout_terms = CheckoutTerms(
        **{
            "seller": seller,
            "amount": price.minor_units,
            "currency": price.currency,
            "what": "Premium report & more",
            "is_live": False,
            **terms,
        }
    )
    return Elicitation(
        id=ID,
        owner="ownertag",
        kind="payment",
        request=Asked(
            server="shop",
            tool="buy",
            client=None,
            message="Pay",
            digest="d",
            terms=msgspec.to_builtins(checkout_terms),
        ),
        dedupe_key="j",
        created_at=NOON,
        expires_at=NOON + timedelta(minutes=45),
        status=Status.OPENED,
    )


def prepared(
    gateway: Gateway, elicitation: Elicitation, *, number: int = 1, context: RedirectContext = TRIP
) -> Elicitation:
    """Return the elicitation with an attempt whose request is stored and was not sent."""
    stored = gateway.prepare(elicitation, context)
    attempt = Attempt(number=number, browser="b", started_at=NOON, kept=stored)
    return replace(elicitation, attempt=attempt)


def with_stored(elicitation: Elicitation, stored: Any) -> Elicitation:
    """Return the elicitation with this data stored in its attempt."""
    assert elicitation.attempt is not None
    return replace(
        elicitation, attempt=replace(elicitation.attempt, kept=msgspec.to_builtins(stored))
    )


def begun(
    gateway: Gateway, elicitation: Elicitation, *, session: str, url: str, **options: Any
) -> Elicitation:
    """Return the elicitation with an attempt that created a session."""
    before = prepared(gateway, elicitation, **options)
    return with_stored(before, replace(stored_checkout(before), session=session, url=url))


def stored_checkout(elicitation: Elicitation) -> StoredCheckout:
    assert elicitation.attempt is not None
    return msgspec.convert(elicitation.attempt.kept, StoredCheckout)


def payment(seller: str, **changes: Any) -> Payment:
    fields: dict[str, Any] = {
        "id": "ownertag-r_1",
        "owner": "ownertag",
        "elicitation_id": ID,
        "dedupe_key": "j",
        "server": "shop",
        "tool": "buy",
        "seller": seller,
        "amount": 900,
        "currency": "EUR",
        "what": "Premium report",
        "is_live": False,
        "paid_at": NOON,
    }
    return Payment(**{**fields, **changes})


def reply(data: Any, status: int = 200) -> httpx.Response:
    return httpx.Response(status, json=data)


def run(talk: Talk[T], *replies: httpx.Response) -> tuple[T, list[httpx.Request]]:
    """Run the talk with these replies.

    Return its result and its requests. Every reply must be used.
    """
    requests: list[httpx.Request] = []
    waiting = list(replies)
    try:
        requests.append(next(talk))
        while True:
            requests.append(talk.send(waiting.pop(0)))
    except StopIteration as stop:
        assert not waiting
        result: T = stop.value
        return result, requests


NO_ANSWERS = [
    httpx.Response(302, headers={"location": "https://evil.example/"}),
    httpx.Response(200, text="<html>Welcome</html>"),
    httpx.Response(200, content=b"\xff\xfe"),
    httpx.Response(200, content=b"[" * 100_000),
    httpx.Response(200, content=b'{"a":' * 100_000),
    httpx.Response(200),
    httpx.Response(204),
    httpx.Response(500, text="oops"),
    reply([]),
    reply({}),
    reply(None),
]
