"""Mollie's Payments v2 in small: what our own gateway calls of it.

What could go wrong: a payment or a refund that is made twice, as its key is forgotten after an
hour.
"""

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, TypeAlias, TypeVar
from urllib.parse import parse_qs

import msgspec
from litestar import Response, Router, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, RawBody

from flows.elicitation.states import Json
from webapp.http.parts import AnyRequest
from webapp.sandbox.answers import Answer, Key, SandboxAnswers, SandboxAsked, provider_router
from webapp.sandbox.authorization_client import bearer_of
from webapp.sandbox.deliveries import Deliver, Deliveries, Pause
from webapp.sandbox.mollie_backend import MollieBackend, MollieError, MollieRefundWish, PaymentWish
from webapp.sandbox.mollie_counter import MollieCounter
from webapp.sandbox.settings import Sandbox

_KEYS_KEPT = timedelta(hours=1)
_LISTED_AT_MOST = 250
_LISTED_BY_DEFAULT = 50
_FORM = ("content-type", "application/x-www-form-urlencoded")
T = TypeVar("T")


def mollie_counter(
    sandbox: Sandbox, *, clock: Callable[[], datetime], deliver: Deliver, pause: Pause
) -> tuple[MollieCounter, "MollieApi"]:
    """What a person meets of it, and what a program does."""
    deliveries = Deliveries(headers_of=lambda _: [_FORM], deliver=deliver, pause=pause)
    backend = MollieBackend(
        url=sandbox.url, origins=sandbox.redirect_origins, clock=clock, tell=deliveries.add
    )
    answers = SandboxAnswers(
        deliveries=deliveries,
        clock=clock,
        refuse=lambda words, status: MollieError(words, status=status),
        headers_of=lambda _: {},
    )
    api = MollieApi(key=sandbox.mollie_key, backend=backend, answers=answers, clock=clock)
    return MollieCounter(backend=backend, deliveries=deliveries), api


@dataclass(frozen=True, slots=True, kw_only=True)
class MollieApi:
    """Answers those who have the key."""

    key: str = field(repr=False)
    backend: MollieBackend
    answers: SandboxAnswers
    clock: Callable[[], datetime]

    def tell(self, request: AnyRequest, act: Callable[[], Json]) -> Response[Any]:
        """Answer what changes nothing."""
        return self.answers.tell(lambda: self.require_key(request), act)

    def do(
        self,
        request: AnyRequest,
        act: Callable[[], Json],
        *,
        body: bytes = b"",
        status: HTTPStatus = HTTPStatus.CREATED,
    ) -> Response[Any]:
        """Do what changes something, once under its key."""

        def ask() -> SandboxAsked:
            self.require_key(request)
            name = request.headers.get("idempotency-key")
            asked = (request.method, request.scope["path"], body)
            conflict = MollieError("The key was used for another request")
            return SandboxAsked(
                act=lambda: Answer(body=act(), status=status),
                changes=True,
                key=Key(name=name, asked=asked, life=_KEYS_KEPT, conflict=conflict)
                if name
                else None,
            )

        return self.answers.give(ask)

    def require_key(self, request: AnyRequest) -> None:
        """Raise MollieError unless the request carries the key."""
        given = bearer_of(request.headers) or ""
        if not hmac.compare_digest(given.encode(), self.key.encode()):
            raise MollieError("Missing authentication, or failed to authenticate", status=401)

    def refunds(self, id: str, query: bytes) -> Json:
        """The latest first. Raises MollieError."""
        limit = _limit(query)
        found = self.backend.known(id).refunds[::-1][:limit]
        now = self.clock()
        refunds: list[Json] = [one.as_json(now=now) for one in found]
        return {"count": len(refunds), "_embedded": {"refunds": refunds}, "_links": {}}


Api: TypeAlias = NamedDependency[MollieApi]


@post("/v2/payments")
async def create(request: AnyRequest, body: RawBody, api: Api) -> Response[Any]:
    return api.do(
        request, lambda: api.backend.create(_read(body, PaymentWish)).as_json(), body=body
    )


@get("/v2/payments/{id:str}")
async def show(request: AnyRequest, id: FromPath[str], api: Api) -> Response[Any]:
    return api.tell(request, lambda: api.backend.known(id).as_json())


@delete("/v2/payments/{id:str}", status_code=HTTPStatus.OK)
async def cancel(request: AnyRequest, id: FromPath[str], api: Api) -> Response[Any]:
    return api.do(request, lambda: api.backend.cancel(id).as_json(), status=HTTPStatus.OK)


@post("/v2/payments/{id:str}/refunds")
async def refund(
    request: AnyRequest, id: FromPath[str], *, body: RawBody, api: Api
) -> Response[Any]:
    def act() -> Json:
        return api.backend.refund(id, _read(body, MollieRefundWish)).as_json(now=api.clock())

    return api.do(request, act, body=body)


@get("/v2/payments/{id:str}/refunds")
async def list_refunds(request: AnyRequest, id: FromPath[str], api: Api) -> Response[Any]:
    return api.tell(request, lambda: api.refunds(id, request.scope["query_string"]))


def mollie_routes() -> Router:
    return provider_router("mollie", create, show, cancel, refund, list_refunds)


def _read(body: bytes, shape: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError as error:
        raise MollieError(f"{error}.") from None
    except (ValueError, RecursionError):
        raise MollieError("The body is no JSON", status=400) from None


def _limit(query: bytes) -> int:
    try:
        given = parse_qs(query.decode("ascii"), max_num_fields=8).get("limit", [])
        limit = int(given[0]) if given else _LISTED_BY_DEFAULT
    except ValueError:
        limit = 0
    if not 0 < limit <= _LISTED_AT_MOST:
        raise MollieError("The limit is none", status=400, field="limit")
    return limit
