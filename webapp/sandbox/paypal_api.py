"""PayPal's Orders v2 in small: what our own gateway calls of it.

What could go wrong: a repeated request that does a thing twice. Under one PayPal-Request-Id it is
done once; the answer to the repetition tells how the order stands by then, as PayPal's does.
"""

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http import HTTPStatus
from typing import Any, TypeAlias, TypeVar
from urllib.parse import parse_qs

import msgspec
from litestar import MediaType, Response, Router, get, post
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException
from litestar.params import FromPath, RawBody

from flows.elicitation.states import Json
from flows.webhooks.certificates import CertificateScheme, sign_certified
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
from webapp.sandbox.deliveries import Deliver, Deliveries, Pause, SandboxEvent
from webapp.sandbox.paypal_backend import (
    OrderWish,
    PayPalBackend,
    PayPalError,
    PayPalRefundWish,
    PayPalTokenError,
)
from webapp.sandbox.paypal_certificates import CERTIFICATE_ID, CertificateAuthority, sandbox_scheme
from webapp.sandbox.paypal_counter import PayPalCounter
from webapp.sandbox.settings import Sandbox

_ORDER_KEYS_KEPT = timedelta(hours=6)
_REFUND_KEYS_KEPT = timedelta(days=45)
_KEY_AT_MOST = 108
_TOKEN_LIFE = timedelta(hours=9)
T = TypeVar("T")


def paypal_counter(
    sandbox: Sandbox, *, clock: Callable[[], datetime], deliver: Deliver, pause: Pause
) -> tuple[PayPalCounter, "PayPalApi"]:
    """What a person meets of it, and what a program does."""
    scheme = sandbox_scheme(sandbox.url)
    authority = CertificateAuthority(scheme, clock=clock)
    webhook_id = sandbox.paypal_webhook_id
    deliveries = Deliveries(
        headers_of=_signer(scheme, authority, webhook_id=webhook_id, clock=clock),
        deliver=deliver,
        pause=pause,
    )
    backend = PayPalBackend(
        url=sandbox.url, webhook_url=sandbox.paypal_webhook_url, clock=clock, tell=deliveries.add
    )
    answers = SandboxAnswers(
        deliveries=deliveries,
        clock=clock,
        refuse=_refusal,
        # What time it is here tells a server whether an order that is gone has lapsed.
        headers_of=lambda _: {"paypal-debug-id": trace(), "date": _http_date(clock())},
    )
    api = PayPalApi(
        client_id=sandbox.client_id,
        client_secret=sandbox.paypal_secret,
        backend=backend,
        answers=answers,
        clock=clock,
        authority=authority,
    )
    return PayPalCounter(backend=backend, deliveries=deliveries), api


@dataclass(slots=True, kw_only=True)
class PayPalApi:
    """Answers those who have a token, which those get who have the secret."""

    client_id: str
    client_secret: str = field(repr=False)
    backend: PayPalBackend
    answers: SandboxAnswers
    clock: Callable[[], datetime]
    authority: CertificateAuthority
    _tokens: dict[str, datetime] = field(default_factory=dict[str, datetime], repr=False)

    def grant(self, request: AnyRequest, body: bytes) -> Response[Any]:
        """An access token for the client's password."""

        def act() -> Answer:
            if parse_qs(body.decode("ascii", "replace")) != {"grant_type": ["client_credentials"]}:
                raise PayPalTokenError("unsupported_grant_type", status=400)
            token = f"A21AA{secrets.token_urlsafe(24)}"
            self._tokens[token] = self.clock() + _TOKEN_LIFE
            seconds = int(_TOKEN_LIFE.total_seconds())
            return Answer(
                body={"access_token": token, "token_type": "Bearer", "expires_in": seconds}
            )

        def ask() -> SandboxAsked:
            given = basic_of(request.headers) or ("", "")
            if not _is_same(":".join(given), f"{self.client_id}:{self.client_secret}"):
                raise PayPalTokenError("invalid_client", status=401)
            return SandboxAsked(act=act, changes=False)

        return self.answers.give(ask)

    def tell(self, request: AnyRequest, act: Callable[[], Json]) -> Response[Any]:
        """Answer what changes nothing."""
        return self.answers.tell(lambda: self._require_token(request), act)

    def do(
        self,
        request: AnyRequest,
        act: Callable[[], Callable[[], Json]],
        *,
        body: bytes,
        kept: timedelta,
    ) -> Response[Any]:
        """Do what changes something; what comes back tells how it stands, now and later."""

        def once() -> Answer:
            now = act()
            return Answer(body=now(), status=HTTPStatus.CREATED, again=lambda: Answer(body=now()))

        def ask() -> SandboxAsked:
            self._require_token(request)
            name = request.headers.get("paypal-request-id")
            if name is None:
                return SandboxAsked(act=once, changes=True)
            if not 0 < len(name) <= _KEY_AT_MOST:
                raise PayPalError("INVALID_STRING_LENGTH", status=400, name="INVALID_REQUEST")
            path = request.scope["path"]
            conflict = PayPalError("DUPLICATE_REQUEST_ID")
            key = Key(name=f"{path} {name}", asked=(body,), life=kept, conflict=conflict)
            return SandboxAsked(act=once, changes=True, key=key)

        return self.answers.give(ask)

    def require_key(self, request: AnyRequest) -> None:
        """Raise PayPalError unless the bearer is the client's password: for the control."""
        if not _is_same(bearer_of(request.headers) or "", self.client_secret):
            raise PayPalTokenError("invalid_client", status=401)

    def _require_token(self, request: AnyRequest) -> None:
        until = self._tokens.get(bearer_of(request.headers) or "")
        if until is None or self.clock() >= until:
            raise PayPalTokenError("invalid_token", status=401)


Api: TypeAlias = NamedDependency[PayPalApi]


@post("/v1/oauth2/token")
async def token(request: AnyRequest, body: RawBody, api: Api) -> Response[Any]:
    return api.grant(request, body)


@post("/v2/checkout/orders")
async def create(request: AnyRequest, body: RawBody, api: Api) -> Response[Any]:
    def act() -> Callable[[], Json]:
        id = api.backend.create(_read(body, OrderWish)).id
        return lambda: api.backend.known(id).as_json()

    return api.do(request, act, body=body, kept=_ORDER_KEYS_KEPT)


@get("/v2/checkout/orders/{id:str}")
async def show(request: AnyRequest, id: FromPath[str], api: Api) -> Response[Any]:
    return api.tell(request, lambda: api.backend.known(id).as_json())


@post("/v2/checkout/orders/{id:str}/capture")
async def capture(
    request: AnyRequest, id: FromPath[str], *, body: RawBody, api: Api
) -> Response[Any]:
    def act() -> Callable[[], Json]:
        api.backend.capture(id)
        return lambda: api.backend.known(id).as_json()

    return api.do(request, act, body=body, kept=_ORDER_KEYS_KEPT)


@get("/v2/payments/captures/{id:str}")
async def show_capture(request: AnyRequest, id: FromPath[str], api: Api) -> Response[Any]:
    return api.tell(request, lambda: api.backend.captured(id).capture_as_json())


@post("/v2/payments/captures/{id:str}/refund")
async def refund(
    request: AnyRequest, id: FromPath[str], *, body: RawBody, api: Api
) -> Response[Any]:
    def act() -> Callable[[], Json]:
        made = api.backend.refund(id, _read(body, PayPalRefundWish))
        return made.as_json

    return api.do(request, act, body=body, kept=_REFUND_KEYS_KEPT)


@get("/v1/notifications/certs/{id:str}")
async def certificate(id: FromPath[str], api: Api) -> Response[Any]:
    if id != CERTIFICATE_ID:
        raise NotFoundException
    return _pem(api.authority.certificate)


@get("/root.pem")
async def root(api: Api) -> Response[Any]:
    """Whom to trust for this sandbox's webhooks; PayPal has nothing like it."""
    return _pem(api.authority.root)


def paypal_routes() -> Router:
    return provider_router(
        "paypal", token, create, show, capture, show_capture, refund, certificate, root
    )


def _pem(content: bytes) -> Response[Any]:
    return Response(content.decode(), media_type=MediaType.TEXT)


def _signer(
    scheme: CertificateScheme,
    authority: CertificateAuthority,
    *,
    webhook_id: str,
    clock: Callable[[], datetime],
) -> Callable[[SandboxEvent], list[tuple[str, str]]]:
    def headers_of(one: SandboxEvent) -> list[tuple[str, str]]:
        signature = sign_certified(
            scheme,
            body=one.body,
            id=one.id,
            webhook_id=webhook_id,
            certificate_id=CERTIFICATE_ID,
            key=authority.key,
            now=clock(),
        )
        return [("content-type", "application/json"), *signature]

    return headers_of


def _read(body: bytes, shape: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=shape)
    except (ValueError, RecursionError):
        raise PayPalError("MALFORMED_REQUEST", status=400, name="INVALID_REQUEST") from None


def _refusal(_: str, status: HTTPStatus) -> PayPalError:
    return PayPalError(status.phrase.upper().replace(" ", "_"), status=status)


def _http_date(now: datetime) -> str:
    return format_datetime(now.astimezone(UTC), usegmt=True)


def _is_same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())
