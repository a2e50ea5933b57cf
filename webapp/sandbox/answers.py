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
from typing import Any, Protocol

import msgspec
from litestar import MediaType, Response, Router, post
from litestar.background_tasks import BackgroundTask
from litestar.di import NamedDependency
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler
from litestar.params import RawBody

from flows.elicitation.states import Json
from webapp.http.parts import AnyRequest, part, provided
from webapp.sandbox.deliveries import Deliveries, SandboxEvent, Wish

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


class Control(Wish, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a test or a demo may ask for."""

    next: SandboxTrouble | None = None


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


class SandboxAnswers:
    """Answers of one provider; its events leave behind them.

    `refuse` makes its error of words and a status, `headers_of` the headers of an answer that was
    or was not given before.
    """

    def __init__(
        self,
        *,
        deliveries: Deliveries,
        clock: Callable[[], datetime],
        refuse: Callable[[str, HTTPStatus], SandboxRefused],
        headers_of: Callable[[bool], Mapping[str, str]],
    ) -> None:
        self._deliveries = deliveries
        self._clock = clock
        self.refuse = refuse
        self._headers_of = headers_of
        self._kept: dict[str, _Kept] = {}
        self._troubles: deque[SandboxTrouble] = deque()

    def give(self, ask: Callable[[], SandboxAsked]) -> Response[Any]:
        """Do what is asked, or say why not: `ask` and what it brings may raise Refused."""
        trouble, replayed = None, False
        try:
            asked = ask()
            trouble = self._troubles.popleft() if asked.changes and self._troubles else None
            if trouble is SandboxTrouble.SERVER_ERROR:
                words, status = "A trouble that was asked for.", HTTPStatus.INTERNAL_SERVER_ERROR
                raise self.refuse(words, status)
            answer, replayed = self._once(asked)
        except SandboxRefused as error:
            answer = Answer(body=error.as_json(), status=HTTPStatus(error.status))
        if trouble is SandboxTrouble.LOST:
            return self._behind(
                Response(
                    "<html>The answer was lost.</html>",
                    status_code=HTTPStatus.GATEWAY_TIMEOUT,
                    media_type=MediaType.HTML,
                )
            )
        headers = {"cache-control": "no-store", **self._headers_of(replayed)}
        return self._behind(Response(answer.body, status_code=answer.status, headers=headers))

    def tell(self, check: Callable[[], None], act: Callable[[], Json]) -> Response[Any]:
        """What changes nothing, for whoever passes the check: that may raise Refused, too."""

        def ask() -> SandboxAsked:
            check()
            return SandboxAsked(act=lambda: Answer(body=act()), changes=False)

        return self.give(ask)

    def control(self, check: Callable[[], None], body: bytes) -> Response[Any]:
        """Change how events arrive, or plan a trouble; no provider has anything like it."""
        released: list[SandboxEvent] = []

        def act() -> Answer:
            try:
                wish = msgspec.json.decode(body, type=Control)
            except msgspec.DecodeError as error:
                raise self.refuse(f"{error}.", HTTPStatus.BAD_REQUEST) from None
            if wish.next is not None:
                self._troubles.append(wish.next)
            released.extend(self._deliveries.change(wish))
            habits = msgspec.to_builtins(self._deliveries.habits)
            return Answer(body={**habits, "held": self._deliveries.held})

        def ask() -> SandboxAsked:
            check()
            return SandboxAsked(act=act, changes=False)

        response = self.give(ask)
        if released:
            response.background = BackgroundTask(self._deliveries.post, released)
        return response

    def _once(self, asked: SandboxAsked) -> tuple[Answer, bool]:
        """The answer, and whether it was given before. A refusal is not kept."""
        key, now = asked.key, self._clock()
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

    def _behind(self, response: Response[Any]) -> Response[Any]:
        response.background = BackgroundTask(self._deliveries.send, self._deliveries.changes())
        return response


class ProviderApi(Protocol):
    """What answers programs in a provider's place."""

    @property
    def answers(self) -> SandboxAnswers: ...

    def require_key(self, request: AnyRequest, /) -> None:
        """Raise Refused unless the request carries what the provider's routes ask for."""


def provider_router(name: str, *handlers: HTTPRouteHandler) -> Router:
    """The provider's own routes, and one to control it with for whoever has the key.

    Each handler is given the provider's `api`, which the request brings under that name.
    """
    api_of: Callable[[AnyRequest], ProviderApi] = part(name)

    def refusal(request: AnyRequest, error: HTTPException) -> Response[Any]:
        status = HTTPStatus(error.status_code)
        refused = api_of(request).answers.refuse(str(error.detail), status)
        return Response(refused.as_json(), status_code=status)

    def failure(request: AnyRequest, error: Exception) -> Response[Any]:
        _log.error("sandbox.failed", exc_info=error)
        status = HTTPStatus.INTERNAL_SERVER_ERROR
        refused = api_of(request).answers.refuse("Something broke in the sandbox.", status)
        return Response(refused.as_json(), status_code=status)

    return Router(
        f"/{name}",
        route_handlers=[*handlers, control],
        request_max_body_size=BODY_BYTES_AT_MOST,
        # By type; that for HTTPException covers what the framework itself refuses.
        exception_handlers={HTTPException: refusal, Exception: failure},
        dependencies=provided(api=name),
    )


@post("/control", status_code=HTTPStatus.OK)
async def control(request: AnyRequest, body: RawBody, api: NamedDependency[Any]) -> Response[Any]:
    provider: ProviderApi = api
    return provider.answers.control(lambda: provider.require_key(request), body)


def trace() -> str:
    """What an answer is called in a provider's own logs."""
    return secrets.token_hex(7)
