"""Stripe's API in small: what its own Python package, and ours, call of it."""

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, TypeAlias

from litestar import Response, Router, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, RawBody

from flows.elicitation.states import Json
from webapp.http.parts import AnyRequest
from webapp.sandbox.answers import (
    Answer,
    Key,
    SandboxAnswers,
    SandboxAsked,
    provider_router,
    trace,
)
from webapp.sandbox.authorization_client import basic_of, bearer_of
from webapp.sandbox.deliveries import Deliver, Deliveries, Pause
from webapp.sandbox.settings import Sandbox
from webapp.sandbox.stripe_backend import StripeBackend
from webapp.sandbox.stripe_counter import StripeCounter
from webapp.sandbox.stripe_events import signer
from webapp.sandbox.stripe_form import CheckoutForm, ErrorType, StripeError, read_pairs

_KEY_AT_MOST = 255
_REPLIES_KEPT = timedelta(hours=24)
Act: TypeAlias = Callable[[CheckoutForm], Json]


def stripe_counter(
    sandbox: Sandbox, *, clock: Callable[[], datetime], deliver: Deliver, pause: Pause
) -> tuple[StripeCounter, "StripeApi"]:
    """What a person meets of it, and what a program does."""
    deliveries = Deliveries(
        headers_of=signer(sandbox.webhook_secret, clock=clock), deliver=deliver, pause=pause
    )
    backend = StripeBackend(
        url=sandbox.url, webhook_url=sandbox.webhook_url, clock=clock, tell=deliveries.add
    )
    answers = SandboxAnswers(
        deliveries=deliveries,
        clock=clock,
        refuse=_refusal,
        headers_of=_headers,
    )
    api = StripeApi(key=sandbox.stripe_key, backend=backend, answers=answers)
    return StripeCounter(backend=backend, deliveries=deliveries), api


@dataclass(slots=True, kw_only=True)
class StripeApi:
    """Answers those who have the key."""

    key: str = field(repr=False)
    backend: StripeBackend
    answers: SandboxAnswers

    def answer(self, request: AnyRequest, act: Act, *, body: bytes | None = None) -> Response[Any]:
        """Do it, or say why not; `body` is that of a POST."""

        def ask() -> SandboxAsked:
            self.require_key(request)
            pairs = read_pairs(request.scope["query_string"] if body is None else body)
            name = None if body is None else request.headers.get("idempotency-key")
            return SandboxAsked(
                act=lambda: Answer(body=act(CheckoutForm(pairs))),
                changes=body is not None,
                key=_key(name, asked=(request.scope["path"], *sorted(pairs))) if name else None,
            )

        return self.answers.give(ask)

    def require_key(self, request: AnyRequest) -> None:
        """Raise StripeError unless the request carries the key."""
        key = _key_of(request)
        if not key:
            raise StripeError(
                "You did not provide an API key. Give it as `Authorization: Bearer YOUR_KEY`.",
                status=401,
            )
        if not self.key or not hmac.compare_digest(key.encode(), self.key.encode()):
            raise StripeError("Invalid API Key provided.", status=401)


Api: TypeAlias = NamedDependency[StripeApi]


@post("/v1/checkout/sessions")
async def create_session(request: AnyRequest, body: RawBody, api: Api) -> Response[Any]:
    return api.answer(request, api.backend.create, body=body)


@get("/v1/checkout/sessions/{id:str}")
async def retrieve_session(request: AnyRequest, id: FromPath[str], api: Api) -> Response[Any]:
    return api.answer(request, lambda form: api.backend.retrieve(id, form))


@post("/v1/checkout/sessions/{id:str}/expire")
async def expire_session(
    request: AnyRequest, id: FromPath[str], *, body: RawBody, api: Api
) -> Response[Any]:
    return api.answer(request, lambda form: api.backend.expire(id, form), body=body)


@get("/v1/payment_intents/{id:str}")
async def retrieve_payment(request: AnyRequest, id: FromPath[str], api: Api) -> Response[Any]:
    return api.answer(request, lambda form: api.backend.retrieve_payment(id, form))


@post("/v1/refunds")
async def create_refund(request: AnyRequest, body: RawBody, api: Api) -> Response[Any]:
    return api.answer(request, api.backend.refund, body=body)


@get("/v1/refunds")
async def list_refunds(request: AnyRequest, api: Api) -> Response[Any]:
    return api.answer(request, api.backend.list_refunds)


@get("/v1/disputes")
async def list_disputes(request: AnyRequest, api: Api) -> Response[Any]:
    return api.answer(request, api.backend.list_disputes)


@get("/v1/refunds/{id:str}")
async def retrieve_refund(request: AnyRequest, id: FromPath[str], api: Api) -> Response[Any]:
    return api.answer(request, lambda form: api.backend.retrieve_refund(id, form))


def stripe_routes() -> Router:
    return provider_router(
        "stripe",
        create_session,
        retrieve_session,
        expire_session,
        retrieve_payment,
        create_refund,
        list_refunds,
        list_disputes,
        retrieve_refund,
    )


def _refusal(words: str, status: HTTPStatus) -> StripeError:
    is_ours = status >= HTTPStatus.INTERNAL_SERVER_ERROR
    error_type: ErrorType = "api_error" if is_ours else "invalid_request_error"
    return StripeError(words, status=status, error_type=error_type)


def _headers(replayed: bool) -> dict[str, str]:  # noqa: FBT001 - a callback's one argument
    headers = {"request-id": f"req_{trace()}"}
    return {**headers, "idempotent-replayed": "true"} if replayed else headers


def _key(name: str, *, asked: tuple[Any, ...]) -> Key:
    if len(name) > _KEY_AT_MOST:
        raise StripeError(f"Idempotency keys have {_KEY_AT_MOST} characters at most.")
    conflict = StripeError(
        "Keys for idempotent requests can only be used with the same parameters they were "
        "first used with. Use another key to send another request.",
        error_type="idempotency_error",
    )
    return Key(name=name, asked=asked, life=_REPLIES_KEPT, conflict=conflict)


def _key_of(request: AnyRequest) -> str:
    """The key as a bearer, or as the user name of HTTP Basic."""
    return bearer_of(request.headers) or (basic_of(request.headers) or ("",))[0]
