"""The common behaviour of all payment APIs: responses, idempotency keys and planned faults.

Risks: a response is lost, and the client repeats the request. So requests with the same idempotency
key run once, for as long as the provider stores keys. The same key with other parameters is an
error. A test can cause lost responses with a `SandboxTrouble`.
"""

import logging
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Protocol, TypeAlias

import msgspec
from litestar import HttpMethod, MediaType, Response, Router, route
from litestar.background_tasks import BackgroundTask
from litestar.di import NamedDependency
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler

from flows.elicitation.states import Json
from webapp.http.parts import AnyRequest, part, provided
from webapp.sandbox.checkout.deliveries import DeliveryHabits, SandboxEvent
from webapp.sandbox.checkout.sales import Sales

BODY_BYTES_AT_MOST = 64 * 1024
_log = logging.getLogger(__name__)


class SandboxRefused(Exception):
    """An API error. Each provider has its own format."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.message = message
        self.status = status

    def as_json(self) -> Json:
        raise NotImplementedError


class SandboxTrouble(StrEnum):
    """The fault of the next request that would change something."""

    SERVER_ERROR = "500"  # the request is not executed
    LOST = "lost"  # the request is executed, but its response is lost


class Control(DeliveryHabits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A control request of a test or a demo."""

    next: SandboxTrouble | None = None
    release: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A response.

    `again` makes the response to a repeated request, if that differs from the first response.
    """

    body: Json
    status: HTTPStatus = HTTPStatus.OK
    again: Callable[[], "Answer"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """An idempotency key, its request, and the error for a different request with the key."""

    name: str
    asked: tuple[Any, ...]
    life: timedelta
    conflict: SandboxRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxAsked:
    """A parsed request."""

    act: Callable[[], Answer]
    changes: bool
    key: Key | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredAnswer:
    asked: tuple[Any, ...]
    answer: Answer
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall:
    """A request to a provider's API. `id` is the id in its path."""

    request: AnyRequest
    body: bytes
    id: str

    @property
    def changes(self) -> bool:
        return self.request.method != "GET"

    @property
    def path(self) -> str:
        return self.request.scope["path"]

    @property
    def query(self) -> bytes:
        return self.request.scope["query_string"]


class ProviderApi(Protocol):
    """The API of a provider. Each method can raise SandboxRefused."""

    @property
    def sales(self) -> Sales[Any]: ...

    def require_key(self, call: ApiCall, /) -> None:
        """Refuse a caller who may not control the provider."""

    def ask(self, call: ApiCall, act: Any, /) -> SandboxAsked:
        """Return the parsed request of a route. `act` is the action of the route."""
        ...

    def refusal(self, words: str, status: HTTPStatus, /) -> SandboxRefused:
        """Return an error that does not come from a route."""
        ...

    def headers(self, is_replayed: bool, /) -> Mapping[str, str]:  # noqa: FBT001 - there is one
        """Return the headers of a response that was or was not replayed."""
        ...


class SandboxAnswers:
    """The responses of one provider. Its webhook events are sent after the response."""

    def __init__(self, api: ProviderApi) -> None:
        self.api = api
        self._deliveries = api.sales.deliveries
        self._stored: dict[str, _StoredAnswer] = {}
        self._troubles: deque[SandboxTrouble] = deque()

    def give(self, ask: Callable[[], SandboxAsked]) -> Response[Any]:
        """Execute a request and return the response.

        `ask` and the request that it returns can raise SandboxRefused, which becomes an error
        response.
        """
        trouble, is_replayed = None, False
        try:
            asked = ask()
            trouble = self._troubles.popleft() if asked.changes and self._troubles else None
            if trouble is SandboxTrouble.SERVER_ERROR:
                words, status = "This failure was requested.", HTTPStatus.INTERNAL_SERVER_ERROR
                raise self.api.refusal(words, status)
            answer, is_replayed = self._once(asked)
        except SandboxRefused as error:
            answer = Answer(body=error.as_json(), status=HTTPStatus(error.status))
        if trouble is SandboxTrouble.LOST:
            response: Response[Any] = Response(
                "<html>The answer was lost.</html>",
                status_code=HTTPStatus.GATEWAY_TIMEOUT,
                media_type=MediaType.HTML,
            )
        else:
            headers = {"cache-control": "no-store", **self.api.headers(is_replayed)}
            response = Response(answer.body, status_code=answer.status, headers=headers)
        return self._deliveries.behind(response)

    def control(self, call: ApiCall) -> Response[Any]:
        """Change how events are delivered, or plan a fault. No real provider has such a route."""
        released: list[SandboxEvent] = []

        def act() -> Answer:
            now = msgspec.to_builtins(self._deliveries.habits)
            try:
                wish = msgspec.json.decode(call.body, type=dict[str, Any])
                wanted = msgspec.convert({**now, **wish}, Control)
            except msgspec.DecodeError as error:
                raise self.api.refusal(f"{error}.", HTTPStatus.BAD_REQUEST) from None
            if wanted.next is not None:
                self._troubles.append(wanted.next)
            self._deliveries.habits = msgspec.convert(wanted, DeliveryHabits, from_attributes=True)
            if wanted.release:
                released.extend(self._deliveries.release())
            habits = msgspec.to_builtins(self._deliveries.habits)
            return Answer(body={**habits, "held": self._deliveries.held})

        def ask() -> SandboxAsked:
            self.api.require_key(call)
            return SandboxAsked(act=act, changes=False)

        response = self.give(ask)
        if released:
            response.background = BackgroundTask(self._deliveries.post, released)
        return response

    def _once(self, asked: SandboxAsked) -> tuple[Answer, bool]:
        """Return the response, and whether it was replayed. Refusals are not stored."""
        key, now = asked.key, self.api.sales.clock()
        self._stored = {name: stored for name, stored in self._stored.items() if now < stored.until}
        if key is None:
            return asked.act(), False
        stored = self._stored.get(key.name)
        if stored is None:
            answer = asked.act()
            self._stored[key.name] = _StoredAnswer(
                asked=key.asked, answer=answer, until=now + key.life
            )
            return answer, False
        if stored.asked != key.asked:
            raise key.conflict
        return stored.answer.again() if stored.answer.again else stored.answer, True


# A function that responds to one of a provider's routes.
Answering: TypeAlias = Callable[[SandboxAnswers, ApiCall], Response[Any]]


def provider_router(name: str, routes: Mapping[str, Any], *handlers: HTTPRouteHandler) -> Router:
    """Return a router with the provider's own routes and a control route for the API key.

    `routes` maps a method and path to the `act` that is passed to the API's `ask`. `handlers` are
    further routes, which receive the provider's SandboxAnswers as the dependency `answers`.
    """
    answers_of: Callable[[AnyRequest], SandboxAnswers] = part(name)

    def refused(request: AnyRequest, words: str, status: HTTPStatus) -> Response[Any]:
        refusal = answers_of(request).api.refusal(words, status)
        return Response(refusal.as_json(), status_code=status)

    def refusal(request: AnyRequest, error: HTTPException) -> Response[Any]:
        return refused(request, str(error.detail), HTTPStatus(error.status_code))

    def failure(request: AnyRequest, error: Exception) -> Response[Any]:
        _log.error("sandbox.failed", exc_info=error)
        status = HTTPStatus.INTERNAL_SERVER_ERROR
        return refused(request, "The sandbox failed: see its log.", status)

    return Router(
        f"/{name}",
        route_handlers=[
            *(_handler(endpoint, _asking(act)) for endpoint, act in routes.items()),
            _handler("POST /control", SandboxAnswers.control),
            *handlers,
        ],
        request_max_body_size=BODY_BYTES_AT_MOST,
        # Handlers by error type. The framework raises HTTPException for requests that it refuses.
        exception_handlers={HTTPException: refusal, Exception: failure},
        dependencies=provided(answers=name),
    )


def _asking(act: Any) -> Answering:
    return lambda answers, call: answers.give(lambda: answers.api.ask(call, act))


def _handler(endpoint: str, answering: Answering) -> HTTPRouteHandler:
    method, _, path = endpoint.partition(" ")

    @route(path, http_method=HttpMethod(method), status_code=HTTPStatus.OK)
    async def handle(request: AnyRequest, answers: NamedDependency[Any]) -> Response[Any]:
        id = request.path_params.get("id", "")
        return answering(answers, ApiCall(request=request, body=await request.body(), id=id))

    return handle


def trace() -> str:
    """Return a random id of a response, as in a provider's own logs."""
    return secrets.token_hex(7)
