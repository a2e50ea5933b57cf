"""The declared payment providers against their own libraries: requests, replies, statuses."""

import dataclasses
import io
from collections.abc import Iterator
from typing import Any, get_args

import httpx
import msgspec
import pydantic
import pytest
from Adyen import Adyen  # type: ignore[import-untyped]
from coinbase_commerce.client import Client as Coinbase  # type: ignore[import-untyped]
from paddle_billing import Client, Options  # type: ignore[import-untyped]
from paddle_billing.Entities.Adjustment import Adjustment  # type: ignore[import-untyped]
from paddle_billing.Entities.Event import Event  # type: ignore[import-untyped]
from paddle_billing.Entities.Shared import (  # type: ignore[import-untyped]
    Action,
    AdjustmentStatus,
    CurrencyCode,
    TaxCategory,
    TransactionStatus,
)
from paddle_billing.Entities.Transaction import Transaction  # type: ignore[import-untyped]
from paddle_billing.Environment import Environment  # type: ignore[import-untyped]
from paddle_billing.Resources.Adjustments.Operations import (  # type: ignore[import-untyped]
    CreateAdjustment,
)
from paddle_billing.Resources.Transactions.Operations import (  # type: ignore[import-untyped]
    CreateTransaction,
    TransactionIncludes,
    UpdateTransaction,
)
from paddle_billing.Resources.Transactions.Operations.Price import (  # type: ignore[import-untyped]
    TransactionNonCatalogPriceWithProduct,
    TransactionNonCatalogProduct,
)
from requests import PreparedRequest, Response, Session
from requests.adapters import BaseAdapter
from square import Square
from square.environment import SquareEnvironment
from square.types.checkout_options import CheckoutOptions
from square.types.create_payment_link_response import CreatePaymentLinkResponse
from square.types.get_order_response import GetOrderResponse
from square.types.get_payment_response import GetPaymentResponse
from square.types.order import Order
from square.types.order_state import OrderState
from square.types.payment_updated_event import PaymentUpdatedEvent
from square.types.refund_payment_response import RefundPaymentResponse

from flows.payments.declared.catalog import SELLERS
from tests.support import gateway_env
from tests.support.declared_env import (
    DIGEST,
    KEY,
    PAYMENT,
    SECRET,
    Case,
    adyen,
    coinbase,
    paddle,
    square,
)
from tests.support.gateway_env import TRIP, kept_in, reply, run


def unknown_in(model: Any, *, place: str = "") -> Iterator[str]:
    """Yield the fields of the data that Square's type does not have."""
    if isinstance(model, pydantic.BaseModel):
        yield from (f"{place}.{name}" for name in model.model_extra or {})
        for name in type(model).model_fields:
            yield from unknown_in(getattr(model, name), place=f"{place}.{name}")
    elif isinstance(model, list):
        for one in model:
            yield from unknown_in(one, place=place)


def sent(case: Case) -> list[httpx.Request]:
    """Return the requests of a payment's life: opening, asking, closing."""
    before = case.prepared()
    _, [opening] = run(case.gateway.begin(before, TRIP), reply(case.opened))
    talk = case.gateway.close(case.begun(), case.session)
    answers = [case.fetched(case.open_word), {}, case.fetched(case.over_word)]
    _, [asking, closing, _] = run(talk, *map(reply, answers))
    return [opening, asking, closing]


@pytest.mark.parametrize(
    ("shape", "data"),
    [
        (CreatePaymentLinkResponse, square.opened),
        *((GetOrderResponse, square.fetched(word)) for word in square.words),
        *((RefundPaymentResponse, one) for one in square.refund_replies.values()),
        (GetPaymentResponse, square.held(400) if square.held else None),
        (PaymentUpdatedEvent, square.told(square.paid_event)),
        (Order, square.body["order"]),
        (CheckoutOptions, square.body["checkout_options"]),
    ],
)
def test_what_square_says_here_is_of_its_own_shape(
    shape: type[pydantic.BaseModel], data: Any
) -> None:
    assert [*unknown_in(shape.model_validate(data))] == []


def test_square_is_asked_what_its_own_library_asks() -> None:
    theirs: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        theirs.append(request)
        return httpx.Response(200, json={})

    ours = sent(square)
    with httpx.Client(transport=httpx.MockTransport(answer)) as client:
        library = Square(token=SECRET, environment=SquareEnvironment.SANDBOX, httpx_client=client)
        library.checkout.payment_links.create(**square.body)
        library.orders.get(order_id="ORDER1")
        library.checkout.payment_links.delete(id="LINK1")
        library.refunds.refund_payment(idempotency_key=KEY, **square.refund_body)
        library.payments.get(payment_id=PAYMENT)
    assert [(one.method, str(one.url)) for one in ours] == [
        (one.method, str(one.url)) for one in theirs[:3]
    ]
    for name in ("Authorization", "Square-Version"):
        assert {one.headers[name] for one in ours} == {one.headers[name] for one in theirs}
    declared = SELLERS["square"]
    assert declared.holding is not None
    assert [f"{one.method} {one.url.path}".replace(PAYMENT, "{payment}") for one in theirs[3:]] == [
        declared.refund,
        declared.holding.call,
    ]
    assert str(declared.api) == SquareEnvironment.PRODUCTION.value


def test_squares_states_are_all_known() -> None:
    [states, _] = get_args(OrderState)
    assert {word.split(" ")[0] for word in square.words} == {*get_args(states)}


def test_what_paddle_says_here_is_of_its_own_shape() -> None:
    for word in paddle.words:
        transaction = Transaction.from_dict(paddle.fetched(word)["data"])
        assert (transaction.id, str(transaction.status)) == (paddle.session, word)
    for refund in paddle.refund_replies.values():
        assert Adjustment.from_dict(refund["data"]).transaction_id == paddle.payment
    for word in (*paddle.events, paddle.paid_event):
        event = Event.from_dict(paddle.told(word))
        assert f"{event.event_type} {event.data.status}" == word
    assert paddle.held is not None
    held = Transaction.from_dict(paddle.held(400)["data"])
    assert held.adjustment_totals.breakdown.refund == "400"


def test_paddle_is_asked_for_what_its_own_library_has() -> None:
    def names(shape: Any) -> set[str]:
        return {one.name for one in dataclasses.fields(shape)}

    [item] = paddle.body["items"]
    assert {*paddle.body} <= names(CreateTransaction)
    assert {*item["price"]} <= names(TransactionNonCatalogPriceWithProduct)
    assert {*item["price"]["product"]} <= names(TransactionNonCatalogProduct)
    declared = SELLERS["paddle"]
    assert declared.api == Environment.PRODUCTION.base_url
    assert declared.test_api == Environment.SANDBOX.base_url
    assert {*declared.currencies} == values(CurrencyCode)
    assert item["price"]["product"]["tax_category"] in values(TaxCategory)
    assert (paddle.fetch or "").endswith(f"?include={TransactionIncludes.AdjustmentsTotals}")


def test_paddles_statuses_are_all_known() -> None:
    assert {*paddle.words} == values(TransactionStatus)
    known = {rule.split("=")[1] for rule in SELLERS["paddle"].refund_states}
    assert known == values(AdjustmentStatus) - {"rejected", "reversed"}


def values(enum: Any) -> set[str]:
    return {str(getattr(enum, name)) for name in vars(enum) if name[0].isupper()}


class Answers(BaseAdapter):
    """A `requests` adapter that records the requests and returns one answer."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer
        self.sent: list[PreparedRequest] = []

    def send(self, request: PreparedRequest, *_: Any, **__: Any) -> Response:
        self.sent.append(request)
        response = Response()
        response.status_code, response.request = 200, request
        response.headers["Content-Type"] = "application/json"
        response.raw = io.BytesIO(httpx.Response(200, json=self.answer).content)
        return response

    def close(self) -> None:
        """Do nothing, since no connection is open."""


def body_of(request: PreparedRequest) -> Any:
    assert isinstance(request.body, bytes | str)
    return msgspec.json.decode(request.body)


def test_paddle_is_asked_what_its_own_library_asks() -> None:
    answers = Answers(paddle.opened)
    with Session() as session:
        session.mount("https://", answers)
        library = Client(SECRET, options=Options(Environment.SANDBOX), http_client=session)
        library.transactions.get(paddle.session, [TransactionIncludes.AdjustmentsTotals])
        library.transactions.update(
            paddle.session, UpdateTransaction(status=TransactionStatus.Canceled)
        )
        answers.answer = paddle.refund_replies["pending"]
        library.adjustments.create(
            CreateAdjustment.full(Action.Refund, "asked for by the seller", paddle.payment)
        )
    [_, asking, closing] = sent(paddle)
    held = [] if paddle.held is None else [reply(paddle.held(0))]
    paid = gateway_env.payment("paddle", session=paddle.session, payment_intent=paddle.payment)
    answer = reply(paddle.refund_replies["pending"])
    _, requests = run(paddle.gateway.refund(paid, reason=None), *held, answer)
    ours = [asking, closing, requests[-1]]
    assert [(one.method, str(one.url).replace("%2C", ",")) for one in ours] == [
        (one.method, one.url) for one in answers.sent
    ]
    for one, theirs in zip(ours[1:], answers.sent[1:], strict=True):
        assert msgspec.json.decode(one.content) == body_of(theirs)


def test_coinbase_is_asked_what_its_own_library_asks() -> None:
    answers = Answers(coinbase.opened)
    library = Coinbase(SECRET)
    with library.session as session:
        session.mount("https://", answers)
        library.charge.create(**coinbase.body)
        library.charge.retrieve(coinbase.session)
    [opening, asking, _] = sent(coinbase)
    assert [(one.method, str(one.url)) for one in (opening, asking)] == [
        (one.method, one.url) for one in answers.sent
    ]
    assert body_of(answers.sent[0]) == coinbase.body
    for name in ("X-CC-Api-Key", "X-CC-Version"):
        assert opening.headers[name] == answers.sent[0].headers[name]


def test_adyen_is_asked_what_its_own_library_asks() -> None:
    theirs: list[tuple[str, str, Any, dict[str, str]]] = []

    class Answering:
        user_agent = "adyen"

        def request(self, method: str, url: str, **more: Any) -> tuple[str, str, int, Any]:
            theirs.append((method, url, more["json"], more["headers"]))
            return "{}", "", 200, {}

    own = {"merchant": "ShopCOM", "prefix": "1a2b-shop"}
    live = dataclasses.replace(
        adyen,
        seller=dataclasses.replace(
            adyen.seller,
            is_live=True,
            own=own,
            more_checkout_origins=("https://test.adyen.link",),
        ),
    )
    for case, platform in ((adyen, "test"), (live, "live")):
        library = Adyen(xapikey=SECRET, platform=platform, live_endpoint_prefix="1a2b-shop")
        library.client.http_client, library.client.http_init = Answering(), True
        links = library.checkout.payment_links_api
        links.payment_links(adyen.body, idempotency_key=DIGEST)
        links.get_payment_link("PLTEST1")
        links.update_payment_link({"status": "expired"}, "PLTEST1")
        ours = sent(case)
        assert [(one.method, str(one.url)) for one in ours] == [
            (method, url) for method, url, _, _ in theirs
        ]
        bodies = [msgspec.json.decode(one.content) if one.content else None for one in ours]
        assert bodies == [body for _, _, body, _ in theirs]
        assert ours[0].headers["Idempotency-Key"] == theirs[0][3]["Idempotency-Key"]
        theirs.clear()
        library.checkout.modifications_api.refund_captured_payment({}, PAYMENT)
        [(method, url, _, _)] = theirs
        path = url.removeprefix(case.seller.api).replace(PAYMENT, "{payment}")
        assert f"{method} {path}" == SELLERS["adyen"].refund
        theirs.clear()


def test_what_is_kept_to_be_sent_is_what_is_sent() -> None:
    for case in (adyen, coinbase, paddle, square):
        assert sent(case)[0].content == kept_in(case.prepared()).request.encode()
