"""A question to a person: the value that a verb returns and that a tool awaits.

The question is asked when it is awaited, not when it is created. The library's only ContextVar
holds the asker of the running tool.
"""

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import wraps
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, Protocol, TypeVar, cast

import httpx

from flows.elicitation.misuse import (
    Explained,
    RunningCode,
    Unasked,
    UnaskedQuestion,
    VerbParameters,
    located,
    place_of_call,
    running,
)
from flows.elicitation.once_work import OnceWork
from flows.elicitation.states import Completion, Json, Status
from flows.elicitation.tool_call import CallingPerson, ToolBody
from flows.errors import (
    ElicitError,
    Failed,
    InvalidQuestion,
    NoAsker,
    NotAccepted,
    NotAwaited,
    Processing,
)

P = ParamSpec("P")
OnWire = Callable[[httpx.Request], httpx.Request]
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
DEFAULT_TIMEOUT = timedelta(minutes=5)
TIMEOUT_AT_MOST = timedelta(days=7)
MESSAGE_AT_MOST = 2000  # a page shows the full message
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_ELICITATION_ID = re.compile(r"[A-Za-z0-9._~-]{1,128}")


class Link:
    """The addresses and tokens with which the author's own service completes a question.

    `id` is the elicitation's id and is unique. Give the id to the service, or give the service an
    `elicitation_id` of your own together with `owner`, an opaque tag of the person who is asked.
    The person's own link to the question is not included.

    - `return_url`: the service redirects the person's browser to this URL. The redirect completes
      the elicitation if the same browser pressed Continue.
    - `return_token`: the token in `return_url`, for the author's own route that calls
      `complete_elicitation(request)`. Pass it as the query parameter `elicitation`.
    - `callback_url`: accepts one POST with a JSON object from the service. Anyone who knows this
      URL can complete this one elicitation after the person opened it.
    """

    __slots__ = ("_callback", "_owner", "_public_url", "_return", "id")

    def __init__(
        self,
        *,
        id: str,
        owner: str = "",
        public_url: str,
        return_token: Callable[[], str],
        callback_token: Callable[[], str],
    ) -> None:
        self.id: str = id
        self._owner = owner
        self._public_url = public_url
        self._return = return_token
        self._callback = callback_token

    @property
    def owner(self) -> str:
        return self._owner

    @property
    def return_token(self) -> str:
        return self._return()

    @property
    def return_url(self) -> str:
        return f"{self._public_url}/return?elicitation={self._return()}"

    @property
    def callback_url(self) -> str:
        return f"{self._public_url}/callback/url/{self._callback()}"


class Request(Protocol):
    """The kind-specific part of a question, as the service and the pages use it."""

    @property
    def kind(self) -> str: ...
    def facts(self) -> Json:
        """Return the facts that identify the question: equal facts mean the same question."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Explained, Generic[T_co]):
    """The outcome of a question. Only an accepted outcome is truthy."""

    status: Status
    content: T_co | None = field(default=None, repr=False)
    error: NotAccepted | None = None
    is_late: bool = False
    # answered by the model, not the person; only if ELICIT_MODEL_ANSWERS allows it
    is_by_model: bool = False
    # the comments of the approvers, in the order of their approvals
    comments: tuple[str, ...] = ()

    @property
    def accepted(self) -> bool:
        return self.status is Status.ACCEPTED

    @property
    def action(self) -> str:
        """The outcome as the MCP protocol names it: accept, decline or cancel."""
        match self.status:
            case Status.ACCEPTED:
                return "accept"
            case Status.DECLINED | Status.DENIED:
                return "decline"
            case _:
                return "cancel"

    @property
    def is_processing(self) -> bool:
        """True if a payment is on its way and the question was set not to wait for it."""
        return isinstance(self.error, Processing)

    def __bool__(self) -> bool:
        return self.accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class Question(Generic[T_co]):
    """A question that has not been asked yet. Await it to ask it and get the answer."""

    message: str
    request: Request
    answer: Callable[[Json], T_co] = field(compare=False)
    # Converts a negative outcome to a return value. If None, awaiting the question raises.
    no: Callable[[NotAccepted], T_co] | None = field(default=None, compare=False)
    key: str | None = None
    # the author's own id, with which trusted code can complete the question
    elicitation_id: str | None = None
    timeout: timedelta = DEFAULT_TIMEOUT
    again: bool = False  # the answer is for one call only; repeating the call asks again
    # if False, awaiting raises Processing as soon as a payment is on its way
    waits_for_money: bool = True
    is_for_good: bool = False  # a permanent purchase: no call of the same question pays again
    # the author's line that created the question or marked its tool; None during an import
    place: str | None = field(default=None, repr=False, compare=False)
    _unasked: UnaskedQuestion | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.message.strip():
            raise InvalidQuestion(
                "The message is empty. Write what the person is asked for, and why."
            )
        if len(self.message) > MESSAGE_AT_MOST or _LONE_SURROGATE.search(self.message):
            raise InvalidQuestion(
                f"The message has more than {MESSAGE_AT_MOST} characters, or contains half of a "
                f"character (a lone surrogate)."
            )
        must_be_timeout(self.timeout)
        if self.key is not None and (not self.key or _LONE_SURROGATE.search(self.key)):
            raise InvalidQuestion(
                "key must be a string that is not empty. Leave it out, or pass such a string."
            )
        if self.elicitation_id is not None:
            must_be_elicitation_id(self.elicitation_id)
        here = running.get(None)
        unasked = None if here is None else here.unasked.add(self.request.kind)
        place = place_of_call() if here is None else unasked and unasked.place
        object.__setattr__(self, "_unasked", unasked)
        object.__setattr__(self, "place", place or self.place)

    def __repr__(self) -> str:
        # Omit the message: it may contain untrusted text, and the repr may be printed to a model.
        at = f" at {self.place}" if self.place else ""
        return f"<Question of the kind {self.request.kind}{at}, not asked: await it>"

    def __hash__(self) -> int:
        # Hash by identity: asyncio.gather runs equal awaitables only once, but two equal questions
        # must both be asked. A schema is not hashable anyway.
        return id(self)

    @property
    def digest(self) -> str:
        return digest_of(self.request.kind, self.request.facts())

    def unasked(self, error: ElicitError) -> Outcome[T_co]:
        """Return the outcome when nobody can be asked.

        Raise `error` if the question has no default.
        """
        if self.no is None:
            raise error
        failed = Failed(f"Nobody was asked {self.message!r}: {error}")
        return Outcome(status=Status.FAILED, error=failed)

    def __await__(self) -> Generator[Any, Any, T_co]:
        outcome = yield from self.outcome().__await__()
        if outcome.error is not None:
            if self.no is not None:
                return self.no(outcome.error)
            raise outcome.error
        return outcome.content  # type: ignore[return-value]  # accepted: the content is a T_co

    async def outcome(self) -> Outcome[T_co]:
        """Ask the question and return its outcome. A negative outcome does not raise.

        Returns:
            The outcome, with the answer or the reason.
        """
        self.discard()
        with reporting_errors(self.place):
            return await current_asker().ask(self)

    async def or_none(self) -> T_co | None:
        """Return the answer to the question, or None for any negative outcome."""
        return (await self.outcome()).content

    def discard(self) -> None:
        """Mark the question as not needed. A call fails if it never asks a question it creates."""
        if self._unasked is not None:
            self._unasked.settle()

    def __bool__(self) -> NoReturn:
        """Raise NotAwaited: the question was used as if it were the answer.

        If the tool does not catch the error, the model receives the error.
        """
        error = NotAwaited(self.place or "some place")
        report_to_asker(error)
        raise error

    if not TYPE_CHECKING:  # type checkers must not see these, so that they report a missing await

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):  # Python's own protocols probe for such names
                raise AttributeError(name)
            bool(self)

        def __getitem__(self, *_: object) -> NoReturn:
            bool(self)

        __iter__ = __len__ = __bool__
        __add__ = __radd__ = __lt__ = __gt__ = __contains__ = __getitem__
        __enter__ = __exit__ = __aenter__ = __aexit__ = __aiter__ = __getitem__


def must_be_timeout(timeout: timedelta) -> None:
    """Raise InvalidQuestion if `timeout` is not a timedelta within the allowed range."""
    if not isinstance(timeout, timedelta):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidQuestion(
            f"timeout must be a timedelta, not {type(timeout).__name__}. Write "
            "timeout=timedelta(seconds=...)."
        )
    if not timedelta(seconds=1) <= timeout <= TIMEOUT_AT_MOST:
        raise InvalidQuestion(
            f"timeout is {timeout}; it must lie between 1 second and {TIMEOUT_AT_MOST}."
        )


def must_be_elicitation_id(text: str) -> None:
    """Raise InvalidQuestion if `text` cannot be an author's `elicitation_id`."""
    if not is_elicitation_id(text):
        raise InvalidQuestion("elicitation_id must be 1 to 128 letters, digits or . _ ~ -")


def is_elicitation_id(text: str) -> bool:
    return _ELICITATION_ID.fullmatch(text) is not None


def digest_of(kind: str, facts: Json) -> str:
    """Return a hash of the kind and the facts that identifies a question."""
    return hashlib.sha256(json.dumps([kind, facts], sort_keys=True).encode()).hexdigest()[:32]


class ReturningRequest(Protocol):
    """The parts of a web framework's request (Litestar, Starlette) that a return route needs."""

    @property
    def query_params(self) -> Any: ...
    @property
    def scope(self) -> Any: ...


class Resources(Protocol):
    """The operations that account and receipt objects use to reach providers and the store."""

    def client(self, *, base_url: str, auth: httpx.Auth, on_wire: OnWire) -> httpx.AsyncClient: ...
    def sync_client(self, *, base_url: str, auth: httpx.Auth, on_wire: OnWire) -> httpx.Client:
        """Return a client for a tool in a worker thread. Raises ElicitError on the event loop."""
        ...

    def now(self) -> datetime: ...
    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the event loop and block this worker thread until it is done."""
        ...

    async def renew(self, connection: str, refused: str) -> tuple[str, str | None] | None:
        """Return a newer token than the refused one, with the key that it is bound to, or None."""
        ...

    async def invalidate(self, connection: str, refused: str) -> None:
        """Let the next use of the account renew this access token, or ask the person again."""
        ...

    async def spend(self, receipt_id: str) -> Json: ...
    async def refund(self, receipt_id: str, *, reason: str | None) -> Json: ...


class Asker(Protocol):
    """The asker of the running code: a tool call, or a route that only completes questions."""

    @property
    def resources(self) -> Resources: ...

    async def ask(self, question: Question[T_co]) -> Outcome[T_co]: ...
    async def ask_together(
        self, questions: Sequence[Question[Any]], *, stops_at_no: bool
    ) -> tuple[Outcome[Any], ...]:
        """Ask the questions in one round and return their outcomes in the same order.

        With `stops_at_no`, the first negative outcome may be raised.
        """
        ...

    async def once(self, work: OnceWork) -> Json: ...
    async def on_end(self, callback: str, payload: str, *, key: str) -> None:
        """Register the function named `callback` for the end of this call.

        `payload` and `key` are JSON.
        """
        ...

    def caller(self) -> CallingPerson: ...
    async def forget(self, name: str) -> bool: ...
    async def notify(self, message: str) -> None:
        """Send a progress message to the client of this call, if the client listens."""
        ...

    def can(self, mode: str) -> bool: ...
    def token(self, elicitation_id: str, *, timeout: timedelta) -> str: ...
    def read_token(self, text: str) -> str:
        """Return the elicitation id in the token. Raises InvalidToken."""
        ...

    def failed(self, error: ElicitError) -> None:
        """Record an error that a verb raised, for the model if no code of the tool catches it."""
        ...

    async def complete(
        self,
        elicitation_id: str,
        content: Json,
        *,
        owner: str | None = None,
        program: str | None = None,
        tool: str | None = None,
    ) -> Completion: ...
    async def complete_return(self, request: ReturningRequest, content: Json) -> Completion: ...


def current_asker() -> Asker:
    """Return the asker of the running code. Raises NoAsker if there is none."""
    try:
        asker: Asker = running.get().asker
    except LookupError:
        raise NoAsker from None
    return asker


def current_unasked() -> Unasked:
    """Return the running call's questions that were created but not asked; empty if no call."""
    here = running.get(None)
    return here.unasked if here is not None else Unasked()


def current_body() -> ToolBody:
    """Return the running tool body, or a new one if there is no asker."""
    here = running.get(None)
    return cast("ToolBody", here.body) if here is not None else ToolBody()


def asks_without_tool() -> bool:
    """Return True if the running code is the application's own, in an `asking` block."""
    here = running.get(None)
    return here is not None and here.is_tool is False


def asks_in_tool() -> bool:
    """Return True if the running code is the body of a tool."""
    here = running.get(None)
    return here is not None and here.is_tool is True


def report_to_asker(error: ElicitError) -> None:
    """Report an error that a verb raised to the current asker, if there is one."""
    here = running.get(None)
    if here is not None:
        here.asker.failed(error)


@contextmanager
def reporting_errors(place: str | None = None) -> Generator[None]:
    """Report errors in this block to the asker.

    The asker sends an error to the model if the tool does not catch the error.

    In a tool, a wrong question becomes InvalidUse, which names the line of the tool's code: `place`
    or, without it, the line that is running.
    """
    try:
        yield
    except ElicitError as error:
        found = located(error, place) if asks_in_tool() else error
        report_to_asker(found)
        if found is error:
            raise
        raise found.with_traceback(error.__traceback__) from error.__cause__


def verb(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that tools call, so that each wrong call is explained to the author.

    The arguments are checked before the function runs, and its errors are reported to the asker.
    """
    parameters = VerbParameters(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with reporting_errors():
            parameters.check(args, kwargs)
            try:
                return function(*args, **kwargs)
            except ElicitError:
                raise
            except (TypeError, AttributeError, ValueError) as error:
                raise parameters.broken_by(error) from error

    @wraps(function)
    def call_later(*args: P.args, **kwargs: P.kwargs) -> Awaitable[Any]:
        here = running.get(None)
        forgotten = None if here is None else here.unasked.add(parameters.name)

        @wraps(function)
        async def awaited() -> Any:
            if forgotten is not None:
                forgotten.settle()
            with reporting_errors(None if forgotten is None else forgotten.place):
                parameters.check(args, kwargs)
                return await cast("Awaitable[Any]", function(*args, **kwargs))

        return awaited()

    return cast("Callable[P, T]", call_later if iscoroutinefunction(function) else call)


@contextmanager
def asking(
    asker: Asker, *, body: ToolBody | None = None, is_tool: bool | None = True
) -> Generator[Unasked]:
    """Make `asker` the asker in this block, and yield the block's record of unasked questions.

    `is_tool` is True in a tool, False in an `asking` block, and None in code that only
    completes questions.
    """
    outer = running.get(None)
    unasked = Unasked(outer.unasked if outer is not None and outer.asker is asker else None)
    here = RunningCode(asker=asker, unasked=unasked, body=body or ToolBody(), is_tool=is_tool)
    token = running.set(here)
    try:
        yield unasked
    finally:
        running.reset(token)
