"""Hooks: what an operator's own code may do at the stages of a question and of its answer.

A plugin is any object; its methods are marked with the stage that they belong to. A question goes
through `describe`, `admit` and `start`, an answer through `verify`, `shorten` and `settle`. What
happens at each, and what a hook may do there, is the table STAGES.

What could go wrong: a hook that opens what a guard has closed, or speaks for the person. So it gets
a frozen value without secrets; what it hands on differs in what its stage leaves open, or in
nothing, and passes the guards that come behind. No hook replaces a guard or stands around a write.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, Final, Generic, Literal, Protocol, TypeAlias, TypeVar, cast, overload

from flows.elicitation.states import Json
from flows.errors import ElicitError
from flows.payments.money import Money
from flows.schema.fields import Field
from flows.schema.schema import Schema

T = TypeVar("T")
ValueT = TypeVar("ValueT", bound="HookFacts")
Moment: TypeAlias = Literal["before", "after", "around", "replace"]
_MARK: Final = "_elicit_hooks"


class HookRefused(ElicitError):
    """A hook lets this not be asked, or not be answered so; the message is for whoever reads it.

    `field` is the one of a form that the sentence is about.
    """

    name = "ELICITATION_REFUSED"
    jsonrpc_code = -32600
    http_status = 403

    def __init__(self, message: str, *, field: str | None = None) -> None:
        self.field = field
        super().__init__(message)


class BadPlugin(TypeError):
    """What cannot be a plugin, or a hook of one; the message says what to write."""


class HookMisused(Exception):
    """A hook did what none may do; the message is for the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookFacts:
    """What a hook may know of any question: no secret, no token and nobody's name.

    `client` is what that calls itself, `client_id` what is proven of it. `owner` is the tag by
    which lists show whoever is asked, a keyed hash. `arguments` are what a yes is about.
    """

    kind: str
    server: str
    tool: str
    client: str | None
    client_id: str | None
    owner: str
    is_for_user: bool  # one of the application's own users, for whom no tool asks
    message: str = field(repr=False)
    arguments: Json = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedQuestion(HookFacts):
    """A question that is about to be asked; `price` is that of a payment."""

    timeout: timedelta
    price: Money | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedQuestion(HookFacts):
    """A question that stands, whose link nobody has seen yet."""

    id: str
    asked_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenAnswer(HookFacts):
    """An answer that was verified and is not written; `by` is the proof that it came with."""

    id: str
    by: str
    content: Mapping[str, Json] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledQuestion(HookFacts):
    """What became of a question, once it is written. `content` is there for a form's answer."""

    id: str
    asked_at: datetime
    settled_at: datetime
    status: str
    is_late: bool
    by: str | None  # the proof that a yes came with
    content: Json = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class HookStage:
    """One row; `leaves_open` are the fields of `value` that a hook may hand on changed."""

    name: str
    does: str
    value: type[HookFacts]
    after: type[HookFacts]  # what a hook after it gets
    leaves_open: tuple[str, ...] = ()
    is_guard: bool = False
    writes: bool = False

    @property
    def moments(self) -> tuple[Moment, ...]:
        """What may be declared here."""
        if self.writes:
            return ("before", "after")
        if self.name == "describe":
            return ("before", "around", "replace", "after")
        return ("before", "around", "after")


STAGES: Final[Mapping[str, HookStage]] = {
    stage.name: stage
    for stage in (
        HookStage(
            name="describe",
            does="what the person is told, and for how long they are asked",
            value=ProposedQuestion,
            after=ProposedQuestion,
            leaves_open=("message", "timeout"),
        ),
        HookStage(
            name="admit",
            does="whether there is room for another question of this person",
            value=ProposedQuestion,
            after=ProposedQuestion,
            is_guard=True,
        ),
        HookStage(
            name="start",
            does="the question gets its id and is written",
            value=ProposedQuestion,
            after=StartedQuestion,
            writes=True,
        ),
        HookStage(
            name="verify",
            does="whether the answer fits the schema, and the question is open",
            value=GivenAnswer,
            after=GivenAnswer,
            is_guard=True,
        ),
        HookStage(
            name="shorten",
            does="nothing by itself: the place to leave out what a form need not tell",
            value=GivenAnswer,
            after=GivenAnswer,
            leaves_open=("content",),
        ),
        HookStage(
            name="settle",
            does="the outcome is written, and whoever waits goes on",
            value=GivenAnswer,
            after=SettledQuestion,
            writes=True,
        ),
    )
}
ASKING: Final = ("describe", "admit", "start")
ANSWERING: Final = ("verify", "shorten", "settle")


class CallOn(Protocol[ValueT]):
    """What an `around` awaits, once: the stage, and whatever stands around it further in."""

    async def __call__(self, value: ValueT | None = None) -> ValueT: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HookMark:
    """What a decorator says of a method."""

    moment: Moment
    stage: str
    when: Callable[[Any], bool] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginHook(Generic[ValueT]):
    """A method of a plugin, at its stage."""

    moment: Moment
    stage: HookStage
    when: Callable[[ValueT], bool] | None
    call: Callable[..., object]
    plugin: str
    method: str

    @property
    def is_too_late(self) -> bool:
        """Whether what it comes after is written, so that it can refuse nothing."""
        return self.stage.writes and self.moment == "after"

    def is_for(self, value: ValueT) -> bool:
        return self.when is None or bool(self.when(value))

    def handed_on(self, value: ValueT, given: object) -> ValueT:
        """What goes on, by what the hook returned. Raises HookMisused."""
        if given is None:
            if self.moment == "replace":
                raise HookMisused("It replaces and returns nothing: return the value.")
            return value
        if self.moment == "after":
            raise HookMisused("What comes after a stage hands nothing on: return None.")
        if type(given) is not type(value):
            raise HookMisused(
                f"It returns a {type(given).__name__}, and {type(value).__name__} goes on here."
            )
        changed = [
            name
            for name in type(value).__dataclass_fields__
            if name not in self.stage.leaves_open and getattr(given, name) != getattr(value, name)
        ]
        if changed:
            may = " and ".join(self.stage.leaves_open) or "nothing"
            raise HookMisused(f"It changes {', '.join(changed)}; {self.stage.name} leaves {may}.")
        return given


_Maybe: TypeAlias = Awaitable[T | None] | T | None
_Nothing: TypeAlias = Awaitable[None] | None
_Describes = TypeVar(
    "_Describes", bound=Callable[[Any, ProposedQuestion], _Maybe[ProposedQuestion]]
)
_Replaces = TypeVar(
    "_Replaces",
    bound=Callable[[Any, ProposedQuestion], Awaitable[ProposedQuestion] | ProposedQuestion],
)
_Proposed = TypeVar("_Proposed", bound=Callable[[Any, ProposedQuestion], _Nothing])
_Started = TypeVar("_Started", bound=Callable[[Any, StartedQuestion], _Nothing])
_Shortens = TypeVar("_Shortens", bound=Callable[[Any, GivenAnswer], _Maybe[GivenAnswer]])
_Given = TypeVar("_Given", bound=Callable[[Any, GivenAnswer], _Nothing])
_Settled = TypeVar("_Settled", bound=Callable[[Any, SettledQuestion], _Nothing])
_AroundAsking = TypeVar(
    "_AroundAsking",
    bound=Callable[
        [Any, ProposedQuestion, CallOn[ProposedQuestion]], Awaitable[ProposedQuestion | None]
    ],
)
_AroundAnswering = TypeVar(
    "_AroundAnswering",
    bound=Callable[[Any, GivenAnswer, CallOn[GivenAnswer]], Awaitable[GivenAnswer | None]],
)


@overload
def before(
    stage: Literal["describe"], *, when: Callable[[ProposedQuestion], bool] | None = None
) -> Callable[[_Describes], _Describes]: ...
@overload
def before(
    stage: Literal["admit", "start"], *, when: Callable[[ProposedQuestion], bool] | None = None
) -> Callable[[_Proposed], _Proposed]: ...
@overload
def before(
    stage: Literal["shorten"], *, when: Callable[[GivenAnswer], bool] | None = None
) -> Callable[[_Shortens], _Shortens]: ...
@overload
def before(
    stage: Literal["verify", "settle"], *, when: Callable[[GivenAnswer], bool] | None = None
) -> Callable[[_Given], _Given]: ...
def before(stage: str, *, when: Callable[[Any], bool] | None = None) -> Callable[[Any], Any]:
    """Mark a method that runs before a stage: it may refuse, and where that is open, change.

    Raises BadPlugin for a stage that is none.
    """
    return _marked("before", stage, when)


@overload
def after(
    stage: Literal["describe", "admit"], *, when: Callable[[ProposedQuestion], bool] | None = None
) -> Callable[[_Proposed], _Proposed]: ...
@overload
def after(
    stage: Literal["start"], *, when: Callable[[StartedQuestion], bool] | None = None
) -> Callable[[_Started], _Started]: ...
@overload
def after(
    stage: Literal["verify", "shorten"], *, when: Callable[[GivenAnswer], bool] | None = None
) -> Callable[[_Given], _Given]: ...
@overload
def after(
    stage: Literal["settle"], *, when: Callable[[SettledQuestion], bool] | None = None
) -> Callable[[_Settled], _Settled]: ...
def after(stage: str, *, when: Callable[[Any], bool] | None = None) -> Callable[[Any], Any]:
    """Mark a method that runs after a stage: once that has written, nothing is refused any more.

    Raises BadPlugin for a stage that is none.
    """
    return _marked("after", stage, when)


@overload
def around(
    stage: Literal["describe", "admit"], *, when: Callable[[ProposedQuestion], bool] | None = None
) -> Callable[[_AroundAsking], _AroundAsking]: ...
@overload
def around(
    stage: Literal["verify", "shorten"], *, when: Callable[[GivenAnswer], bool] | None = None
) -> Callable[[_AroundAnswering], _AroundAnswering]: ...
def around(stage: str, *, when: Callable[[Any], bool] | None = None) -> Callable[[Any], Any]:
    """Mark an async method that awaits the stage itself, as its second argument, exactly once.

    Raises BadPlugin for a stage that is none or writes.
    """
    return _marked("around", stage, when)


def replace(
    stage: Literal["describe"], *, when: Callable[[ProposedQuestion], bool] | None = None
) -> Callable[[_Replaces], _Replaces]:
    """Mark a method that says in the author's place what the person is told.

    Raises BadPlugin for any other stage: a guard is never replaced, nor what is written.
    """
    return _marked("replace", stage, when)


def _marked(moment: Moment, stage: str, when: Callable[[Any], bool] | None) -> Callable[[Any], Any]:
    _must_be_possible(moment, stage)
    if inspect.iscoroutinefunction(when):
        raise BadPlugin(f"when= of @{moment}({stage!r}) is async; write a plain function.")

    def mark(method: Callable[..., Any]) -> Callable[..., Any]:
        if moment == "around" and not inspect.iscoroutinefunction(method):
            raise BadPlugin(
                f"{method.__qualname__} stands around a stage and has to await it: write async def."
            )
        marks = (HookMark(moment=moment, stage=stage, when=when), *getattr(method, _MARK, ()))
        setattr(method, _MARK, marks)
        return method

    return mark


def _must_be_possible(moment: Moment, stage: object) -> None:
    """Raises BadPlugin."""
    if not isinstance(stage, str):
        raise BadPlugin(f'@{moment} has no stage: write @{moment}("describe"), or another stage.')
    row = STAGES.get(stage)
    if row is None:
        near = get_close_matches(stage, STAGES, n=1)
        meant = f"perhaps {near[0]!r} is meant" if near else f"there are {', '.join(STAGES)}"
        raise BadPlugin(f"@{moment}({stage!r}): there is no such stage; {meant}.")
    if moment not in row.moments:
        why = "is a guard" if row.is_guard else "writes" if row.writes else "is the person's word"
        raise BadPlugin(
            f"@{moment}({stage!r}): {stage} {why}, so nothing may stand there by {moment}; write "
            f"{' or '.join(row.moments)}."
        )


def hooks_of(plugin: object) -> tuple[PluginHook[Any], ...]:
    """The hooks of a plugin, in the order in which they stand. Raises BadPlugin for what has none.

    A subclass has those of its base first.
    """
    if isinstance(plugin, type):
        raise BadPlugin(
            f"{plugin.__name__} is a class: a plugin is an object, so write {plugin.__name__}() "
            "and name that."
        )
    found = tuple(_found(plugin))
    if not found:
        raise BadPlugin(
            f"A {type(plugin).__name__} has no hooks: mark its methods, as in "
            '@after("settle") (from flows.hooks import after).'
        )
    return found


def _found(plugin: object) -> Iterator[PluginHook[Any]]:
    names = [name for kind in reversed(type(plugin).__mro__) for name in vars(kind)]
    for name in dict.fromkeys(names):
        standing = inspect.getattr_static(plugin, name)
        marks = cast("tuple[HookMark, ...]", getattr(standing, _MARK, ()))
        for mark in marks:
            yield PluginHook(
                moment=mark.moment,
                stage=STAGES[mark.stage],
                when=mark.when,
                call=getattr(plugin, name),
                plugin=type(plugin).__name__,
                method=name,
            )


def must_say_no_more(schema: Schema[Any], typed: Json, left: Json) -> None:
    """What a hook left of an answer: fewer fields, fewer choices, shorter texts, nothing else.

    Raises HookMisused, which names the field.
    """
    was, now = cast("Mapping[str, Json]", typed), cast("Mapping[str, Json]", left)
    for asked in schema.fields:
        is_told = asked.name in now
        if is_told and not _says_no_more(asked, was.get(asked.name), now[asked.name]):
            raise HookMisused(
                f"It changes {asked.name}: a text may lose letters, or have * in their place, "
                "choices may become fewer, and a field may be left out."
            )


def _says_no_more(asked: Field, typed: Json, left: Json) -> bool:
    if type(left) is type(typed) and left == typed:
        return True
    match asked.kind:
        case "string" if asked.limits.format in (None, "multiline"):
            return isinstance(left, str) and isinstance(typed, str) and _is_left_of(typed, left)
        case "choices":
            return (
                isinstance(left, list)
                and isinstance(typed, list)
                and all(one in typed for one in left)
                and len(left) <= len(typed)
            )
        case _:
            return False


def _is_left_of(typed: str, left: str) -> bool:
    rest = iter(typed)
    return len(left) <= len(typed) and all(sign in rest for sign in left.replace("*", ""))
