"""Asking a user from the application's own coroutines, outside of any tool.

Risks: the wrong user answers. The block therefore names the owner, the author's `who` identifies
the person at a browser, and a link opens only if owner and person are the same.

Risks: a question is asked twice. Two blocks with the same owner and key are therefore one request:
the newer block takes over the wait of the older one, and a block after a crash continues with the
existing questions, payments and results.
"""

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, TypeVar, cast

from flows import question as questions
from flows.elicitation.misuse import must_take
from flows.elicitation.shown_link import Show, ShownLink
from flows.elicitation.states import Elicitation
from flows.elicitation.tool_call import APPLICATION, ToolCall
from flows.errors import (
    Cancelled,
    ElicitError,
    InvalidQuestion,
    NoAsker,
    ResultNotStored,
    StoreUnavailable,
)
from webapp.calls.call import Call, Presenter
from webapp.calls.presenter import PresentedQuestion
from webapp.calls.unasked import all_were_asked
from webapp.calls.verbs import Verbs
from webapp.elicitations.waiters import Waiter
from webapp.identity.user_codes import UserCodes
from webapp.identity.users import USER_ID_CHARACTERS, is_user_id
from webapp.service import Service

T = TypeVar("T")
KEY_CHARACTERS = 256
_LOOK_AGAIN = timedelta(minutes=1)
_ENDING = timedelta(seconds=5)
_TAKEN_OVER = (
    "A newer `asking` block with the same owner and key now waits for this question, so this block "
    "has ended. The question stays open."
)
_PROCESS_ENDS = (
    "This process is shutting down, so it no longer waits for the answer. The question stays open: "
    "an `asking` block with the same owner and key resumes it."
)
_NONE_RUNS = (
    "Nobody can be asked: no application from create_app is running in this process. Write app = "
    "create_app(read_settings(), who=...), serve it or mount it in your own application, and start "
    "its lifespan before you ask."
)
_SEVERAL_RUN = (
    "Several applications from create_app are running in this process. Pass the one that asks, as "
    "in asking(owner, show=..., app=app)."
)
_OTHER_LOOP = (
    "The application from create_app runs in another event loop than this coroutine. Await the "
    "coroutine in the event loop that serves the application, for example with "
    "asyncio.run_coroutine_threadsafe."
)
_log = logging.getLogger(__name__)


@asynccontextmanager
async def asking(
    owner: str, *, show: Show, key: str | None = None, app: object | None = None
) -> AsyncGenerator[None]:
    """Ask a user of your application within the block, in any coroutine.

    The results of a block are used up when it ends without an error. After a payment or `once`, the
    same owner and key then raise AlreadyDone for two minutes. After an error of your own code, a
    payment can be used again with the same owner and key. After a cancel or a crash, all results
    can be used again.

    Args:
        owner: Your id of the user.
        show: Receives each link after the question has opened. It may be async, and is cancelled
            when there is nothing more to show.
        key: Identifies the request: another block with the same owner and key, also after a
            restart, continues with the same questions, and the block that waited gets Cancelled.
            Each block without a key is a separate request.
        app: The result of create_app, if several applications run.

    Raises:
        InvalidQuestion: The owner, the key or `show` is not valid, or the block is inside another
            one with the same owner and key.
        NoAsker: No application runs.
        NotConfigured: No browser could be identified as the user's.
        StoreUnavailable: The end of the block could not be stored. The server then stores the end
            as soon as possible.
    """
    service = _service_of(app)
    # Our `_no_function` takes no link, so `show=None` is refused too.
    must_take(cast("Show | None", show) or _no_function, 1, name="show")
    call = _call(service, _user_id(owner), show=show, key=_checked_key(key))
    _must_not_wait_for_itself(call)
    verbs = Verbs(call)
    with service.running_tools.at_work(call):
        try:
            with questions.asking(verbs, is_tool=False) as unasked:
                yield
            await all_were_asked(unasked, tool=APPLICATION)
        except BaseException as error:
            has_ended = isinstance(error, Exception) and not _goes_on(error, call)
            end = partial(call.end, is_error=True) if has_ended else call.finish
            await _logged(service, service.running_tools.ended(call, end))
            raise
        await service.elicitations.run_to_completion(service.running_tools.ended(call, call.end))


@contextmanager
def completing(*, app: object | None = None) -> Generator[None]:
    """Allow `complete_elicitation` within the block, for code such as a route of your application.

    Args:
        app: The result of create_app, if several applications run.

    Raises:
        NoAsker: No application runs.
    """
    with questions.asking(_service_of(app).completing, is_tool=None):
        yield


@asynccontextmanager
async def asked_in(service: Service, *, app: object | None) -> AsyncGenerator[None]:
    """Let `asking` blocks find the service while it runs. Drain the service at the end."""
    one = _Running(service=service, app=app, loop=asyncio.get_running_loop())
    _RUNNING.append(one)
    try:
        yield
    finally:
        _RUNNING.remove(one)
        if service.running_tools.has_blocks:
            await service.drain(within=_ENDING)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Running:
    service: Service
    app: object | None
    loop: asyncio.AbstractEventLoop


# The services that run in this process, so that a block needs no reference to the application.
_RUNNING: Final[list[_Running]] = []


def _service_of(app: object | None) -> Service:
    """Return the service for this event loop. Raises NoAsker."""
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
    wrong = f"has {len(owner)} characters" if isinstance(owner, str) else "is no str"
    raise InvalidQuestion(
        f"owner must be the id of one of your users, a str of 1 to {USER_ID_CHARACTERS} "
        f"characters without lone surrogates. This value {wrong}. Write asking(str(user.id), ...)."
    )


def _checked_key(key: object) -> str | None:
    if key is None or (isinstance(key, str) and 0 < len(key) <= KEY_CHARACTERS):
        return key
    raise InvalidQuestion(
        f"key must be a str of 1 to {KEY_CHARACTERS} characters that says what the block is for, "
        'as in asking(owner, key="order 8", ...).'
    )


def _call(service: Service, user: str, *, show: Show, key: str | None) -> Call:
    """Return the call of a block. Raises NotConfigured."""
    caller = service.identity.caller_of_user(user)
    # `caller_of_user` raises NotConfigured if `users` is None
    assert service.identity.users is not None
    named = {"key": key} if key is not None else {"block": secrets.token_urlsafe(18)}
    return Call(
        service,
        caller,
        ToolCall(
            server=service.identity.users.application,
            tool=APPLICATION,
            client=None,
            arguments=json.dumps(named),
        ),
        presenter=_ByAuthor(show, service.identity.user_codes),
    )


def _no_function() -> None:
    """Take the place of `show=None`, so that the check of `show` refuses it."""


def _must_not_wait_for_itself(call: Call) -> None:
    """Check that this block is not nested in a block with the same owner and key.

    The inner block would wait for the outer block to end. Raises InvalidQuestion.
    """
    outer = questions.current_asker() if questions.asks_without_tool() else None
    if not isinstance(outer, Verbs) or outer.call.has_ended:
        return
    if (outer.call.caller.owner, outer.call.tool) == (call.caller.owner, call.tool):
        raise InvalidQuestion(
            "This `asking` block is inside another one with the same owner and key, and would wait "
            "for it. Ask in the outer block, or use another key."
        )


def _goes_on(error: Exception, call: Call) -> bool:
    """Return True if a block with the same owner and key continues where this one stopped."""
    return call.is_interrupted or isinstance(error, Cancelled | StoreUnavailable | ResultNotStored)


async def _logged(service: Service, work: Any) -> None:
    """Run the work to completion and log its errors, so that the block's own error is raised."""
    try:
        await service.elicitations.run_to_completion(work)
    except Exception:  # noqa: BLE001 - the block's own error is being raised
        _log.exception("call.bookkeeping_failed")


class _ByAuthor(Presenter):
    """A presenter of questions that calls the author's own function."""

    def __init__(self, show: Show, user_codes: UserCodes) -> None:
        self._show = show
        self._user_codes = user_codes
        self._shown = set[str]()

    def can(self, mode: str) -> bool:
        return mode == "url"

    def limit(self, kind: str, *, now: datetime, timeout: timedelta) -> datetime:
        return now + timeout

    def busy(self) -> ElicitError:
        return Cancelled(_TAKEN_OVER)

    async def wait(
        self, call: Call, shown: PresentedQuestion, waiter: Waiter
    ) -> Elicitation | None:
        try:
            async with asyncio.TaskGroup() as tasks:
                showing = tasks.create_task(self._show_once(shown))
                current = await self._held(call, shown.elicitation, waiter)
                showing.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        if call.is_waiting_for(current):
            call.interrupt(Cancelled(_PROCESS_ENDS, elicitation_id=current.id))
        return current

    async def _show_once(self, shown: PresentedQuestion) -> None:
        asked = shown.elicitation
        if asked.id in self._shown:
            return
        self._shown.add(asked.id)
        link = ShownLink(
            url=shown.url,
            kind=asked.kind,
            message=asked.request.message,
            elicitation_id=asked.id,
            expires_at=asked.expires_at,
            needs_code=asked.is_by_code,
            _wrong=lambda typed: self._user_codes.wrong(asked, typed),
        )
        showing = self._show(link)
        if isinstance(showing, Awaitable):
            await showing

    async def _held(self, call: Call, asked: Elicitation, waiter: Waiter) -> Elicitation:
        """Wait until the call no longer waits for the question, or the process shuts down.

        There is no time limit, because an exchange that began in time may end after the timeout.
        """
        current = asked
        while call.is_waiting_for(current) and not call.is_draining:
            current = await call.hold(current, waiter, until=call.clock() + _LOOK_AGAIN)
        return current
