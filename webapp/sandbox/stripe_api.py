"""Stripe's API in small: what its own Python package, and ours, call of it.

What could go wrong: a reply is lost on its way and the request comes again. Under one idempotency
key it is answered once for 24 hours; the same key with other words is an error, not an answer.
"""

import base64
import binascii
import hmac
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Annotated, Any, TypeAlias

import msgspec
from litestar import Request, Response, Router, get, post
from litestar.background_tasks import BackgroundTask
from litestar.di import NamedDependency
from litestar.exceptions import HTTPException
from litestar.params import FromPath, RawBody

from flows.elicitation import Json
from webapp.sandbox.stripe_events import Deliveries
from webapp.sandbox.stripe_form import Form, StripeError, read_pairs
from webapp.sandbox.stripe_till import Till

BODY_BYTES_AT_MOST = 64 * 1024
_KEY_AT_MOST = 255
_REPLIES_KEPT = timedelta(hours=24)
_DUPLICATES_AT_MOST = 20
_log = logging.getLogger(__name__)
Act: TypeAlias = Callable[[Form], Json]
AnyRequest: TypeAlias = Request[Any, Any, Any]


class Control(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a test or a demo may ask of the deliveries; what is not named stays as it is."""

    duplicates: Annotated[int, msgspec.Meta(ge=0, le=_DUPLICATES_AT_MOST)] | None = None
    reorder: bool | None = None
    hold: bool | None = None
    drop: bool | None = None
    release: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """An answer under an idempotency key, and the request that it answers."""

    asked: tuple[Any, ...]
    answer: Json
    until: datetime


@dataclass(slots=True, kw_only=True)
class StripeApi:
    """Answers those who have the key."""

    key: str = field(repr=False)
    till: Till
    deliveries: Deliveries
    clock: Callable[[], datetime]
    _kept: dict[str, _Kept] = field(default_factory=dict[str, _Kept])

    def answer(self, request: AnyRequest, act: Act, *, body: bytes | None = None) -> Response[Any]:
        """Do it, or say why not; `body` is that of a POST."""
        encoded = request.scope["query_string"] if body is None else body
        replayed = False
        try:
            self.require_key(request)
            pairs = read_pairs(encoded)
            name = None if body is None else request.headers.get("idempotency-key")
            if name:
                asked = (request.scope["path"], *sorted(pairs))
                answer, replayed = self._once(name, asked, lambda: act(Form(pairs)))
            else:
                answer = act(Form(pairs))
        except StripeError as error:
            return self.response(error.as_json(), status=error.status)
        headers = {"idempotent-replayed": "true"} if replayed else {}
        return self.response(answer, headers=headers)

    def response(
        self, answer: Json, *, status: int = 200, headers: dict[str, str] | None = None
    ) -> Response[Any]:
        """An answer whose events leave behind it."""
        return Response(
            answer,
            status_code=status,
            headers={
                "cache-control": "no-store",
                "request-id": f"req_{secrets.token_hex(7)}",
                **(headers or {}),
            },
            background=BackgroundTask(self.deliveries.send, self.till.news()),
        )

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

    def _once(
        self, name: str, asked: tuple[Any, ...], act: Callable[[], Json]
    ) -> tuple[Json, bool]:
        """The answer, and whether it was given before. A refusal is not kept, as at Stripe."""
        now = self.clock()
        self._kept = {key: kept for key, kept in self._kept.items() if now < kept.until}
        if len(name) > _KEY_AT_MOST:
            raise StripeError(f"Idempotency keys have {_KEY_AT_MOST} characters at most.")
        kept = self._kept.get(name)
        if kept is None:
            answer = act()
            self._kept[name] = _Kept(asked=asked, answer=answer, until=now + _REPLIES_KEPT)
            return answer, False
        if kept.asked != asked:
            raise StripeError(
                "Keys for idempotent requests can only be used with the same parameters they were "
                "first used with. Use another key to send another request.",
                error_type="idempotency_error",
            )
        return kept.answer, True


@post("/v1/checkout/sessions")
async def create_session(
    request: AnyRequest, body: RawBody, api: NamedDependency[StripeApi]
) -> Response[Any]:
    return api.answer(request, api.till.create, body=body)


@get("/v1/checkout/sessions/{id:str}")
async def retrieve_session(
    request: AnyRequest, id: FromPath[str], api: NamedDependency[StripeApi]
) -> Response[Any]:
    return api.answer(request, lambda form: api.till.retrieve(id, form))


@post("/v1/checkout/sessions/{id:str}/expire")
async def expire_session(
    request: AnyRequest, id: FromPath[str], body: RawBody, api: NamedDependency[StripeApi]
) -> Response[Any]:
    return api.answer(request, lambda form: api.till.expire(id, form), body=body)


@get("/v1/payment_intents/{id:str}")
async def retrieve_payment(
    request: AnyRequest, id: FromPath[str], api: NamedDependency[StripeApi]
) -> Response[Any]:
    return api.answer(request, lambda form: api.till.retrieve_payment(id, form))


@post("/v1/refunds")
async def create_refund(
    request: AnyRequest, body: RawBody, api: NamedDependency[StripeApi]
) -> Response[Any]:
    return api.answer(request, api.till.refund, body=body)


@get("/v1/refunds")
async def list_refunds(request: AnyRequest, api: NamedDependency[StripeApi]) -> Response[Any]:
    return api.answer(request, api.till.list_refunds)


@get("/v1/refunds/{id:str}")
async def retrieve_refund(
    request: AnyRequest, id: FromPath[str], api: NamedDependency[StripeApi]
) -> Response[Any]:
    return api.answer(request, lambda form: api.till.retrieve_refund(id, form))


@post("/control", status_code=200)
async def control(
    request: AnyRequest, body: RawBody, api: NamedDependency[StripeApi]
) -> Response[Any]:
    """Change how events arrive; Stripe has nothing like it."""
    try:
        api.require_key(request)
        asked = msgspec.json.decode(body, type=Control)
    except msgspec.DecodeError as error:
        return api.response(StripeError(f"{error}.").as_json(), status=400)
    except StripeError as error:
        return api.response(error.as_json(), status=error.status)
    named = {
        name: value
        for name in ("duplicates", "reorder", "hold", "drop")
        if (value := getattr(asked, name)) is not None
    }
    deliveries = api.deliveries
    deliveries.habits = replace(deliveries.habits, **named)
    released = deliveries.release() if asked.release else []
    response = api.response({**msgspec.to_builtins(deliveries.habits), "held": deliveries.held})
    if released:
        response.background = BackgroundTask(deliveries.post, released)
    return response


def api_router() -> Router:
    return Router(
        "/stripe",
        route_handlers=[
            create_session,
            retrieve_session,
            expire_session,
            retrieve_payment,
            create_refund,
            list_refunds,
            retrieve_refund,
            control,
        ],
        request_max_body_size=BODY_BYTES_AT_MOST,
        # By type; that for HTTPException covers what the framework itself refuses.
        exception_handlers={HTTPException: _refusal, Exception: _failure},
    )


def _refusal(_: AnyRequest, error: HTTPException) -> Response[Any]:
    refused = StripeError(str(error.detail), status=error.status_code)
    return Response(refused.as_json(), status_code=refused.status)


def _failure(_: AnyRequest, error: Exception) -> Response[Any]:
    _log.error("stripe_api.failed", exc_info=error)
    failed = StripeError("Something broke in the sandbox.", status=500, error_type="api_error")
    return Response(failed.as_json(), status_code=failed.status)


def _key_of(request: AnyRequest) -> str:
    """The key as a bearer, or as the user name of HTTP Basic."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    match scheme.lower():
        case "bearer":
            return given.strip()
        case "basic":
            try:
                return base64.b64decode(given, validate=True).decode().partition(":")[0]
            except (binascii.Error, ValueError):
                return ""
        case _:
            return ""
