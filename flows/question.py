"""A question to a person: what a verb returns and a tool awaits.

Nothing is asked until it is awaited. Who asks for the tool is the one ContextVar of the library.
"""

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar

import httpx

from flows.elicitation.states import Completion, Json, Status
from flows.elicitation.tool_body import ToolBody
from flows.elicitation.unasked import Made, Unasked
from flows.errors import (
    Cancelled,
    Declined,
    Denied,
    ElicitError,
    Expired,
    Failed,
    InvalidQuestion,
    NoAsker,
    NotAccepted,
    NotAwaited,
    Processing,
    Superseded,
)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
DEFAULT_TIMEOUT = timedelta(minutes=5)
TIMEOUT_AT_MOST = timedelta(days=7)
MESSAGE_AT_MOST = 2000  # a page shows all of them
_ELICITATION_ID = re.compile(r"[A-Za-z0-9._~-]{1,128}")


class Link:
    """What an author's own service needs to come back to us; the link of the question is not in it.

    `id` is the elicitation's, which nobody else has: give it to the service, or an id of your own
    with `owner` beside it, which stands for whoever is asked and says nothing of them.
    `return_url` is where the service sends the person's browser: opened by the browser that
    pressed Continue, it completes the elicitation. `return_token` is what it carries, for a route
    of the author's own that calls `complete_elicitation(request)`: pass it on as the query
    parameter `elicitation`. `callback_url` takes one POST with a JSON object from the service
    itself; whoever holds it can complete this one elicitation once it was opened.
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
        self.id = id
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
    """What is asked, of one kind: its parts that the service and the pages need."""

    @property
    def kind(self) -> str: ...
    def facts(self) -> Json:
        """What makes two questions the same: goes into the digest of its place."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[T_co]):
    """What became of a question. Only an accepted one is truthy."""

    status: Status
    content: T_co | None = field(default=None, repr=False)
    error: NotAccepted | None = None
    is_late: bool = False
    is_by_model: bool = False  # not the person's; only where ELICIT_MODEL_ANSWERS lets it

    @property
    def accepted(self) -> bool:
        return self.status is Status.ACCEPTED

    @property
    def action(self) -> str:
        """The word of the protocol for it: accept, decline or cancel."""
        match self.status:
            case Status.ACCEPTED:
                return "accept"
            case Status.DECLINED | Status.DENIED:
                return "decline"
            case _:
                return "cancel"

    @property
    def is_processing(self) -> bool:
        """Whether a payment is on its way, by a question that was not to wait for it."""
        return isinstance(self.error, Processing)

    def __bool__(self) -> bool:
        return self.accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class Question(Generic[T_co]):
    """A question that nobody was asked yet: await it for the answer."""

    message: str
    request: Request
    answer: Callable[[Json], T_co] = field(compare=False)
    # What awaiting it gives for a no; without one, it raises.
    no: Callable[[NotAccepted], T_co] | None = field(default=None, compare=False)
    key: str | None = None
    elicitation_id: str | None = None  # the author's own, by which trusted code knows it
    timeout: timedelta = DEFAULT_TIMEOUT
    again: bool = False  # its answer is for one call; the same call made again is another wish
    waits_for_money: bool = True  # else it comes to Processing once a payment is on its way
    _made: Made | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.message.strip():
            raise InvalidQuestion("The message is empty: the person must be told what this is for.")
        if len(self.message) > MESSAGE_AT_MOST or not _can_be_written(self.message):
            raise InvalidQuestion(
                f"The message has more than {MESSAGE_AT_MOST} characters, or half a letter."
            )
        must_be_timeout(self.timeout)
        if self.key is not None and not (self.key and _can_be_written(self.key)):
            raise InvalidQuestion("key is empty or no text; leave it out or give it one.")
        if self.elicitation_id is not None:
            must_be_elicitation_id(self.elicitation_id)
        if (here := _here.get(None)) is not None:
            object.__setattr__(self, "_made", here.unasked.add(self.request.kind))

    def __repr__(self) -> str:
        # What it says may come from anywhere, and a forgotten one may be printed to a model.
        return f"<Question of the kind {self.request.kind}, not asked: await it>"

    def __hash__(self) -> int:
        # asyncio.gather asks what is one to it once: two questions are two, also where they are
        # equal, and a schema has no hash.
        return id(self)

    @property
    def digest(self) -> str:
        return digest_of(self.request.kind, self.request.facts())

    def unasked(self, error: ElicitError) -> Outcome[T_co]:
        """What it comes to where nobody can be asked at all: a no, or the error is raised."""
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
        """What became of it; a no does not raise."""
        self.discard()
        return await current_asker().ask(self)

    async def or_none(self) -> T_co | None:
        """The answer, or None for every no."""
        return (await self.outcome()).content

    def discard(self) -> None:
        """It is not to be asked: a call that makes a question and forgets it fails."""
        if self._made is not None:
            self._made.settle()

    def __bool__(self) -> NoReturn:
        """Used as its answer, it says so; if that leaves the tool, the model is told."""
        error = NotAwaited("some place" if self._made is None else self._made.place)
        tell_asker(error)
        raise error

    if not TYPE_CHECKING:  # to a type checker it has none of these, so it finds what was forgotten

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):  # Python's own protocols, which ask everything
                raise AttributeError(name)
            bool(self)

        def __getitem__(self, key: object) -> NoReturn:
            bool(self)

        __iter__ = __len__ = __bool__


def must_be_timeout(timeout: timedelta) -> None:
    """Raises InvalidQuestion for a time that no question may last."""
    if not isinstance(timeout, timedelta):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidQuestion(f"timeout is {timeout!r}; write timeout=timedelta(seconds=...).")
    if not timedelta(seconds=1) <= timeout <= TIMEOUT_AT_MOST:
        raise InvalidQuestion(
            f"timeout is {timeout}; it must lie between 1 second and {TIMEOUT_AT_MOST}."
        )


def must_be_listed(name: str, given: object) -> None:
    """Raises InvalidQuestion for one text, which would be taken for its letters."""
    if isinstance(given, str):
        raise InvalidQuestion(f"{name} is a list: {name}=[{given!r}].")


def must_be_elicitation_id(text: str) -> None:
    """Raises InvalidQuestion for what cannot be an author's own id of a question."""
    if not is_elicitation_id(text):
        raise InvalidQuestion("elicitation_id must be 1 to 128 letters, digits or . _ ~ -")


def is_elicitation_id(text: str) -> bool:
    return _ELICITATION_ID.fullmatch(text) is not None


def digest_of(kind: str, facts: Json) -> str:
    """What tells one question from another, by its facts."""
    text = json.dumps([kind, facts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class ReturningRequest(Protocol):
    """A request of a web framework (Litestar, Starlette): the parts that a return needs."""

    @property
    def query_params(self) -> Any: ...
    @property
    def scope(self) -> Any: ...


class Resources(Protocol):
    """By what accounts and receipts, once given, reach the outside."""

    def client(self, *, base_url: str, auth: httpx.Auth) -> httpx.AsyncClient: ...
    def sync_client(self, *, base_url: str, auth: httpx.Auth) -> httpx.Client:
        """For a tool that runs in a worker thread. Raises ElicitError on the event loop."""
        ...

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """In a worker thread, until the event loop has done it."""
        ...

    async def renew(self, connection: str, refused: str) -> str | None:
        """A newer key of the account for one that its provider refused; None: there is none."""
        ...

    async def spend(self, receipt_id: str) -> Json: ...
    async def refund(self, receipt_id: str, *, reason: str | None) -> Json: ...


class Asker(Protocol):
    """Who asks for the tool that is running: a call, or a route that may only complete."""

    @property
    def resources(self) -> Resources: ...

    async def ask(self, question: Question[T_co]) -> Outcome[T_co]: ...
    async def ask_together(
        self, questions: Sequence[Question[Any]], *, stops_at_no: bool
    ) -> tuple[Outcome[Any], ...]:
        """In one round, in this order; the first no may be raised, if it stops there."""
        ...

    async def once(
        self,
        name: str,
        work: Callable[[str], Awaitable[Json]],
        *,
        key: str | int | None,
        again: bool,
    ) -> Json: ...
    async def forget(self, name: str) -> bool: ...
    async def notify(self, message: str) -> None:
        """Tell whoever waits for what runs here, if anybody listens."""
        ...

    def can(self, mode: str) -> bool: ...
    def token(self, elicitation_id: str, *, timeout: timedelta) -> str: ...
    def read_token(self, text: str) -> str:
        """Raises InvalidToken."""
        ...

    def failed(self, error: ElicitError) -> None:
        """A verb raised it; if it leaves the tool, the model is told."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Here:
    asker: Asker
    unasked: Unasked
    body: ToolBody
    is_tool: bool = True


_here: ContextVar[_Here] = ContextVar("elicit_asker")


def current_asker() -> Asker:
    """Raises NoAsker where there is none."""
    try:
        return _here.get().asker
    except LookupError:
        raise NoAsker from None


def current_unasked() -> Unasked:
    """What was made here and not asked; nothing where nobody asks."""
    here = _here.get(None)
    return here.unasked if here is not None else Unasked()


def current_body() -> ToolBody:
    """The body that runs here; a new one where nobody asks."""
    here = _here.get(None)
    return here.body if here is not None else ToolBody()


def asks_without_tool() -> bool:
    """Whether it is a coroutine of an application's own that asks here."""
    here = _here.get(None)
    return here is not None and not here.is_tool


def tell_asker(error: ElicitError) -> None:
    """Let whoever asks here, if anybody does, know what a verb raised."""
    here = _here.get(None)
    if here is not None:
        here.asker.failed(error)


@contextmanager
def telling() -> Generator[None]:
    """Let whoever asks here know what was raised within: if it leaves the tool, the model is told.

    Whatever a tool calls of ours, and that may refuse, stands within one.
    """
    try:
        yield
    except ElicitError as error:
        tell_asker(error)
        raise


@contextmanager
def asking(
    asker: Asker, *, body: ToolBody | None = None, is_tool: bool = True
) -> Generator[Unasked]:
    """Within it, verbs go to `asker`; what is made within it, and not asked, is what it gives."""
    outer = _here.get(None)
    unasked = Unasked(outer.unasked if outer is not None and outer.asker is asker else None)
    here = _Here(asker=asker, unasked=unasked, body=body or ToolBody(), is_tool=is_tool)
    token = _here.set(here)
    try:
        yield unasked
    finally:
        _here.reset(token)


def _can_be_written(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True


def refusal(
    status: Status,
    *,
    message: str,
    elicitation_id: str,
    timeout: timedelta,
    why: str | None = None,
    approver: str | None = None,
) -> NotAccepted | None:
    """The error for an outcome that is no yes; None for a yes. `approver`: who was to decide."""
    if status is Status.ACCEPTED:
        return None
    about = f"{message!r}" + (f" ({why})" if why else "")
    if status is Status.EXPIRED:
        return Expired(
            f"Nobody answered within {timeout.total_seconds():.0f} seconds: {about}.",
            elicitation_id=elicitation_id,
            ttl=timeout,
        )
    if status not in _REFUSALS:
        raise ValueError(f"{status} is no outcome")
    error, words = _REFUSALS[status]
    if status is Status.DECLINED and approver is not None:
        words = f"{approver} declined"
    return error(f"{words}: {about}.", elicitation_id=elicitation_id)


_REFUSALS: Mapping[Status, tuple[type[NotAccepted], str]] = {
    Status.DECLINED: (Declined, "The person declined"),
    Status.DENIED: (Denied, "The person said no at the provider"),
    Status.CANCELLED: (Cancelled, "It was cancelled before an answer"),
    Status.FAILED: (Failed, "It could not be finished"),
    Status.SUPERSEDED: (Superseded, "A newer question took its place"),
}
