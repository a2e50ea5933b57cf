"""What every payment provider's API does alike here: it answers, once under each key.

What could go wrong: a reply is lost on its way and the request comes again. Under one idempotency
key it is done once, for as long as the provider keeps keys; the same key with other words is an
error, not an answer. A test makes it go wrong by asking for a `SandboxTrouble`.
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
    """What a request gets instead of an answer; each provider has words of its own."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.message = message
        self.status = status

    def as_json(self) -> Json:
        raise NotImplementedError


class SandboxTrouble(StrEnum):
    """What becomes of the next request that would change something."""

    SERVER_ERROR = "500"  # nothing is done
    LOST = "lost"  # it is done, and the answer to it does not arrive


class Control(DeliveryHabits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a test or a demo may ask for."""

    next: SandboxTrouble | None = None
    release: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`again` is what a repeated request is told, where that is not the first answer."""

    body: Json
    status: HTTPStatus = HTTPStatus.OK
    again: Callable[[], "Answer"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """An idempotency key, what is asked under it, and what something else under it is told."""

    name: str
    asked: tuple[Any, ...]
    life: timedelta
    conflict: SandboxRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxAsked:
    """A request that was understood."""

    act: Callable[[], Answer]
    changes: bool
    key: Key | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    asked: tuple[Any, ...]
    answer: Answer
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall:
    """A request to a provider's API; `id` is what its path names."""

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
    """What answers programs in a provider's place. Each of these may raise SandboxRefused."""

    @property
    def sales(self) -> Sales[Any]: ...

    def require_key(self, call: ApiCall, /) -> None:
        """Refuse whoever may not control the provider."""

    def ask(self, call: ApiCall, act: Any, /) -> SandboxAsked:
        """What the request of one of its routes comes to, by what the route does."""
        ...

    def refusal(self, words: str, status: HTTPStatus, /) -> SandboxRefused:
        """For what is no concern of its routes."""
        ...

    def headers(self, is_replayed: bool, /) -> Mapping[str, str]:  # noqa: FBT001 - there is one
        """Of an answer that was or was not given before."""
        ...


class SandboxAnswers:
    """Answers of one provider; its events leave behind them."""

    def __init__(self, api: ProviderApi) -> None:
        self.api = api
        self._deliveries = api.sales.deliveries
        self._kept: dict[str, _Kept] = {}
        self._troubles: deque[SandboxTrouble] = deque()

    def give(self, ask: Callable[[], SandboxAsked]) -> Response[Any]:
        """Do what is asked, or say why not: `ask` and what it brings may raise SandboxRefused."""
        trouble, is_replayed = None, False
        try:
            asked = ask()
            trouble = self._troubles.popleft() if asked.changes and self._troubles else None
            if trouble is SandboxTrouble.SERVER_ERROR:
                words, status = "A trouble that was asked for.", HTTPStatus.INTERNAL_SERVER_ERROR
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
        """Change how events arrive, or plan a trouble; no provider has anything like it."""
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
        """The answer, and whether it was given before. A refusal is not kept."""
        key, now = asked.key, self.api.sales.clock()
        self._kept = {name: kept for name, kept in self._kept.items() if now < kept.until}
        if key is None:
            return asked.act(), False
        kept = self._kept.get(key.name)
        if kept is None:
            answer = asked.act()
            self._kept[key.name] = _Kept(asked=key.asked, answer=answer, until=now + key.life)
            return answer, False
        if kept.asked != key.asked:
            raise key.conflict
        return kept.answer.again() if kept.answer.again else kept.answer, True


# How one of a provider's routes is answered, by its answers.
Answering: TypeAlias = Callable[[SandboxAnswers, ApiCall], Response[Any]]


def provider_router(name: str, routes: Mapping[str, Any], *handlers: HTTPRouteHandler) -> Router:
    """The provider's own routes, and one to control it with for whoever has the key.

    `routes` are what `ask` of its API is given, by method and path; `handlers` are given the
    provider's `answers`, which the request brings under its name.
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
        return refused(request, "Something broke in the sandbox.", status)

    return Router(
        f"/{name}",
        route_handlers=[
            *(_handler(place, _asking(act)) for place, act in routes.items()),
            _handler("POST /control", SandboxAnswers.control),
            *handlers,
        ],
        request_max_body_size=BODY_BYTES_AT_MOST,
        # By type; that for HTTPException covers what the framework itself refuses.
        exception_handlers={HTTPException: refusal, Exception: failure},
        dependencies=provided(answers=name),
    )


def _asking(act: Any) -> Answering:
    return lambda answers, call: answers.give(lambda: answers.api.ask(call, act))


def _handler(place: str, answering: Answering) -> HTTPRouteHandler:
    method, _, path = place.partition(" ")

    @route(path, http_method=HttpMethod(method), status_code=HTTPStatus.OK)
    async def handle(request: AnyRequest, answers: NamedDependency[Any]) -> Response[Any]:
        id = request.path_params.get("id", "")
        return answering(answers, ApiCall(request=request, body=await request.body(), id=id))

    return handle


def trace() -> str:
    """What an answer is called in a provider's own logs."""
    return secrets.token_hex(7)
