"""Coroutines: code of the application's own, beside any tool, that awaits one of its users.

What could go wrong: a user who is somebody else. The block says whom it asks, the author's `who`
says who is at a browser, and a link opens where the two are one. Or a question that is asked twice:
by the same owner and key a block is the same wish, so that a newer one takes over the wait of an
older one, and one after a crash goes on with what was asked, paid and done.
"""

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, TypeVar

from flows import question as questions
from flows.elicitation.states import Elicitation, Json
from flows.elicitation.tool_call import APPLICATION, ToolCall
from flows.errors import (
    AlreadyDone,
    Cancelled,
    ElicitError,
    InvalidQuestion,
    NoAsker,
    ResultNotKept,
    StoreUnavailable,
)
from flows.question import Outcome, Question
from webapp.calls.call import Call
from webapp.calls.presenter import Interrupted, Leg, PresentedQuestion
from webapp.calls.shown_link import Show, ShownLink
from webapp.calls.unasked import all_were_asked
from webapp.calls.verbs import Verbs
from webapp.elicitations.waiters import Waiter
from webapp.identity.user_codes import UserCodes
from webapp.identity.users import USER_ID_CHARACTERS, is_user_id
from webapp.service import Service

T = TypeVar("T")
# What stands in the place of a tool's name: an account is shared with the whole application.
KEY_CHARACTERS = 256
_LOOK_AGAIN = timedelta(minutes=1)
_ENDING = timedelta(seconds=5)
_TAKEN_OVER = (
    "A newer block `asking` with this owner and key waits for this now, so this one has ended. "
    "The question stays open."
)
_PROCESS_ENDS = (
    "This process ends, so it waits for nobody any more. The question stays open: a block `asking` "
    "with the same owner and key goes on with it."
)
_NONE_RUNS = (
    "Nobody can be asked: no application of create_app runs in this process. Write app = "
    "create_app(read_settings(), who=...), serve it or mount it in your own application, and see "
    "that its lifespan runs before this."
)
_SEVERAL_RUN = (
    "Several applications of create_app run in this process: say which one asks, as in "
    "asking(owner, show=..., app=app)."
)
_OTHER_LOOP = (
    "The application of create_app runs in another event loop than this coroutine: await this in "
    "the loop that serves it (asyncio.run_coroutine_threadsafe hands it there)."
)
_log = logging.getLogger(__name__)


@asynccontextmanager
async def asking(
    owner: str, *, show: Show, key: str | None = None, app: object | None = None
) -> AsyncGenerator[None]:
    """Within the block verbs ask the user `owner` of your application, in any coroutine.

    `show` is given each link, when it waits already, and may be async; it is cancelled when there
    is nothing more to show. `key` names the wish: another block with the same owner and key, also
    after a restart, goes on with the same questions, and the one that waited gets Cancelled. A
    block without a key is a wish of its own. `app` is what create_app gave, where several run.

    What the block got is used up when it ends without an error; after a payment or `once` the same
    owner and key raise AlreadyDone for two minutes. After an error of yours a payment is there for
    the same owner and key, and after a cancel or a crash all of it is. Raises InvalidQuestion,
    NoAsker, NotConfigured where nobody could tell whose a browser is, and StoreUnavailable where
    the end of the block could not be stored: it is stored as soon as that works again.
    """
    service = _service_of(app)
    call = _call(service, _user_id(owner), show=show, key=_checked_key(key))
    verbs = _BlockVerbs(call)
    with service.bodies.at_work(call):
        call.begin()
        try:
            with questions.asking(verbs, is_tool=False) as unasked:
                yield
            await all_were_asked(unasked, tool=APPLICATION)
        except BaseException as error:
            is_over = isinstance(error, Exception) and not _goes_on(error, call)
            end = partial(call.end, is_error=True) if is_over else call.finish
            await _logged(service, service.bodies.ended(call, end))
            raise
        await service.elicitations.whole(service.bodies.ended(call, call.end))


@contextmanager
def completing(*, app: object | None = None) -> Generator[None]:
    """Within it `complete_elicitation` works in code of your application's own, as in a route.

    `app` is what create_app gave, where several run. Raises NoAsker.
    """
    with questions.asking(_service_of(app).completing):
        yield


@asynccontextmanager
async def asked_in(service: Service, *, app: object | None) -> AsyncGenerator[None]:
    """While it is served, blocks `asking` find it; at the end they are told."""
    one = _Running(service=service, app=app, loop=asyncio.get_running_loop())
    _RUNNING.append(one)
    try:
        yield
    finally:
        _RUNNING.remove(one)
        if service.bodies.has_blocks:
            await service.drain(within=_ENDING)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Running:
    service: Service
    app: object | None
    loop: asyncio.AbstractEventLoop


# What is served in this process at this moment: a block need not be handed the application.
_RUNNING: Final[list[_Running]] = []


def _service_of(app: object | None) -> Service:
    """Raises NoAsker."""
    found = [one for one in _RUNNING if app is None or one.app is app]
    here = [one for one in found if one.loop is asyncio.get_running_loop()]
    if len(here) == 1:
        return here[0].service
    if here:
        raise NoAsker(_SEVERAL_RUN)
    raise NoAsker(_OTHER_LOOP if found else _NONE_RUNS)


def _user_id(owner: object) -> str:
    if isinstance(owner, str) and is_user_id(owner):
        return owner
    raise InvalidQuestion(
        f"owner is the id of one of your users, a text of 1 to {USER_ID_CHARACTERS} characters, "
        f"and this is a {type(owner).__name__}: write asking(str(user.id), ...)."
    )


def _checked_key(key: object) -> str | None:
    if key is None or (isinstance(key, str) and 0 < len(key) <= KEY_CHARACTERS):
        return key
    raise InvalidQuestion(
        f"key names what the block is for, in 1 to {KEY_CHARACTERS} characters, as in "
        'asking(owner, key="order 8", ...).'
    )


def _call(service: Service, user: str, *, show: Show, key: str | None) -> Call:
    """Raises NotConfigured."""
    caller = service.identity.caller_of_user(user)
    assert service.users is not None  # else it would not know its users
    named = {"key": key} if key is not None else {"block": secrets.token_urlsafe(18)}
    return service.call(
        caller,
        ToolCall(
            server=service.users.application,
            tool=APPLICATION,
            client=None,
            arguments=json.dumps(named),
        ),
        presenter=_ByAuthor(show, service.user_codes),
    )


def _goes_on(error: Exception, call: Call) -> bool:
    """Whether a block with the same owner and key goes on where this one was."""
    return call.is_interrupted or isinstance(error, Cancelled | StoreUnavailable | ResultNotKept)


async def _logged(service: Service, work: Any) -> None:
    """To its end; what the block raised is not covered by what goes wrong here."""
    try:
        await service.elicitations.whole(work)
    except Exception:  # noqa: BLE001 - the block's own error is on its way
        _log.exception("call.bookkeeping_failed")


class _BlockVerbs(Verbs):
    """Those of a block; where a tool's body would be ended, the verb raises."""

    async def ask(self, question: Question[T]) -> Outcome[T]:
        with self._interrupted():
            return await super().ask(question)

    async def ask_together(
        self, questions: Sequence[Question[Any]], *, stops_at_no: bool
    ) -> tuple[Outcome[Any], ...]:
        with self._interrupted():
            return await super().ask_together(questions, stops_at_no=stops_at_no)

    async def once(
        self,
        name: str,
        work: Callable[[str], Awaitable[Json]],
        *,
        key: str | int | None = None,
        again: bool | None,
    ) -> Json:
        with self._interrupted():
            return await super().once(name, work, key=key, again=again)

    @contextmanager
    def _interrupted(self) -> Generator[None]:
        try:
            yield
        except Interrupted:
            answer = self.call.answer
            raise (answer if isinstance(answer, ElicitError) else AlreadyDone()) from None


class _ByAuthor:
    """Presents by the author's own function."""

    def __init__(self, show: Show, user_codes: UserCodes) -> None:
        self._show = show
        self._user_codes = user_codes
        self._shown = set[str]()

    def can(self, mode: str) -> bool:
        return mode == "url"

    def asks_in_client(self, kind: str, arguments: Json) -> bool:
        return False

    def carry(self, call: Leg, state: object) -> object:
        return state

    async def heed(self, call: Leg) -> None:
        pass  # nobody answers but on the page

    def limit(self, kind: str, *, now: datetime, timeout: timedelta) -> datetime:
        return now + timeout

    def busy(self) -> ElicitError:
        return Cancelled(_TAKEN_OVER)

    async def wait(self, call: Leg, shown: PresentedQuestion, waiter: Waiter) -> Elicitation | None:
        try:
            async with asyncio.TaskGroup() as tasks:
                showing = tasks.create_task(self._told(shown))
                current = await self._held(call, shown.elicitation, waiter)
                showing.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        if call.is_waiting_for(current):
            call.interrupt(Cancelled(_PROCESS_ENDS, elicitation_id=current.id))
        return current

    async def _told(self, shown: PresentedQuestion) -> None:
        asked = shown.elicitation
        if asked.id in self._shown:
            return
        self._shown.add(asked.id)
        link = ShownLink(
            url=shown.url,
            kind=asked.kind,
            message=asked.asked.message,
            elicitation_id=asked.id,
            expires_at=asked.expires_at,
            needs_code=asked.is_by_code,
            _wrong=lambda typed: self._user_codes.wrong(asked, typed),
        )
        showing = self._show(link)
        if isinstance(showing, Awaitable):
            await showing

    async def _held(self, call: Leg, asked: Elicitation, waiter: Waiter) -> Elicitation:
        """An exchange that began in time may end later."""
        current = asked
        while call.is_waiting_for(current) and not call.is_draining:
            current = await call.hold(current, waiter, until=call.now + _LOOK_AGAIN)
        return current
