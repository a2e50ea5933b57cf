"""Hooks: the operator's own code at the stages of a question and its answer.

A plugin is any object whose methods are marked with a stage. A question passes the stages
`describe`, `admit` and `start`, an answer passes `verify`, `shorten` and `settle`. The table STAGES
says what happens at each stage and what a hook may do there.

Risks: a hook allows what a guard has refused, or answers for the person. A hook therefore receives
a frozen value without secrets, may change only the fields that its stage leaves open, and its
result passes the guards that follow. A hook cannot replace a guard or wrap a write.
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
    """A hook refuses the question or the answer.

    The message is for the person or the model.

    `field` is the form field that the message is about.
    """

    name = "ELICITATION_REFUSED"
    jsonrpc_code = -32600
    http_status = 403

    def __init__(self, message: str, *, field: str | None = None) -> None:
        self.field = field
        super().__init__(message)


class BadPlugin(TypeError):
    """The object is no valid plugin, or one of its hooks is invalid. The message says why."""


class HookMisused(Exception):
    """A hook did something that its stage does not allow. The message is for the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookFacts:
    """The facts about a question that every hook may see: no secret, no token and no person's name.

    `client` is the client's unverified name, `client_id` its verified id. `owner` is a keyed hash
    that identifies the person who is asked. Lists of questions show this hash. `arguments` are the
    arguments that the person approves.
    """

    kind: str
    server: str
    tool: str
    client: str | None
    client_id: str | None
    owner: str
    is_for_user: bool  # True if the application asks one of its own users, without a tool
    message: str = field(repr=False)
    arguments: Json = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedQuestion(HookFacts):
    """A question before it is asked. `price` is set for a payment."""

    timeout: timedelta
    price: Money | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedQuestion(HookFacts):
    """A question that is stored, but whose link has not been sent yet."""

    id: str
    asked_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenAnswer(HookFacts):
    """An answer that is verified but not stored yet. `by` is the class name of its proof."""

    id: str
    by: str
    content: Mapping[str, Json] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledQuestion(HookFacts):
    """A question whose outcome is stored. `content` is set for a form's answer only."""

    id: str
    asked_at: datetime
    settled_at: datetime
    status: str
    is_late: bool
    by: str | None  # the class name of the proof, if accepted
    content: Json = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class HookStage:
    """A row of STAGES. `leaves_open` are the fields of `value` that a hook may change."""

    name: str
    does: str
    value: type[HookFacts]
    after: type[HookFacts]  # the type that an `after` hook receives
    leaves_open: tuple[str, ...] = ()
    is_guard: bool = False
    writes: bool = False

    @property
    def moments(self) -> tuple[Moment, ...]:
        """The moments at which hooks can run at this stage."""
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
            does="what the person sees, and for how long they are asked",
            value=ProposedQuestion,
            after=ProposedQuestion,
            leaves_open=("message", "timeout"),
        ),
        HookStage(
            name="admit",
            does="checks the limits of open questions of this person",
            value=ProposedQuestion,
            after=ProposedQuestion,
            is_guard=True,
        ),
        HookStage(
            name="start",
            does="the question gets its id and is stored",
            value=ProposedQuestion,
            after=StartedQuestion,
            writes=True,
        ),
        HookStage(
            name="verify",
            does="checks that the answer matches the schema and the question is open",
            value=GivenAnswer,
            after=GivenAnswer,
            is_guard=True,
        ),
        HookStage(
            name="shorten",
            does="nothing by default; a hook can remove data that the tool does not need",
            value=GivenAnswer,
            after=GivenAnswer,
            leaves_open=("content",),
        ),
        HookStage(
            name="settle",
            does="the outcome is stored, and waiting calls continue",
            value=GivenAnswer,
            after=SettledQuestion,
            writes=True,
        ),
    )
}
ASKING: Final = ("describe", "admit", "start")
ANSWERING: Final = ("verify", "shorten", "settle")


class CallOn(Protocol[ValueT]):
    """The function that an `around` hook awaits once: it runs the inner hooks and the stage."""

    async def __call__(self, value: ValueT | None = None) -> ValueT: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HookMark:
    """The stage and moment that a decorator set on a method."""

    moment: Moment
    stage: str
    when: Callable[[Any], bool] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginHook(Generic[ValueT]):
    """A method of a plugin, with its stage."""

    moment: Moment
    stage: HookStage
    when: Callable[[ValueT], bool] | None
    call: Callable[..., object]
    plugin: str
    method: str

    @property
    def is_too_late(self) -> bool:
        """True if the stage has already stored its result, so the hook cannot refuse it."""
        return self.stage.writes and self.moment == "after"

    def is_for(self, value: ValueT) -> bool:
        return self.when is None or bool(self.when(value))

    def checked_result(self, value: ValueT, given: object) -> ValueT:
        """Return the value for the next hook, from this hook's return value. Raises HookMisused."""
        if given is None:
            if self.moment == "replace":
                raise HookMisused(
                    "The hook replaces the stage but returns nothing. Return the value."
                )
            return value
        if self.moment == "after":
            raise HookMisused(
                "A hook that runs after a stage must return None, because its return value "
                "is ignored."
            )
        if type(given) is not type(value):
            raise HookMisused(
                f"It returns a {type(given).__name__}, but the stage needs a "
                f"{type(value).__name__}."
            )
        changed = [
            name
            for name in type(value).__dataclass_fields__
            if name not in self.stage.leaves_open and getattr(given, name) != getattr(value, name)
        ]
        if changed:
            may = " and ".join(self.stage.leaves_open) or "nothing"
            raise HookMisused(
                f"It changes {', '.join(changed)}; in {self.stage.name}, a hook can change: {may}."
            )
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
    """Mark a method that runs before a stage. It may refuse, or change fields in `leaves_open`.

    Args:
        stage: The name of the stage.
        when: A function of the value: the method runs if it returns True. Default: always.

    Returns:
        A decorator that returns the method itself.

    Raises:
        BadPlugin: The stage does not exist.
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
    """Mark a method that runs after a stage. If the stage writes, the method cannot refuse.

    Args:
        stage: The name of the stage.
        when: A function of the value: the method runs if it returns True. Default: always.

    Returns:
        A decorator that returns the method itself.

    Raises:
        BadPlugin: The stage does not exist.
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
    """Mark an async method that wraps a stage. It must call its second argument once and await it.

    Args:
        stage: The name of the stage.
        when: A function of the value: the method runs if it returns True. Default: always.

    Returns:
        A decorator that returns the method itself.

    Raises:
        BadPlugin: The stage does not exist or writes.
    """
    return _marked("around", stage, when)


def replace(
    stage: Literal["describe"], *, when: Callable[[ProposedQuestion], bool] | None = None
) -> Callable[[_Replaces], _Replaces]:
    """Mark a method that sets the text for the person, instead of the text of the tool's author.

    Args:
        stage: `describe`.
        when: As for `before`.

    Returns:
        A decorator that returns the method itself.

    Raises:
        BadPlugin: `stage` is not `describe`. Guards and writes cannot be replaced.
    """
    return _marked("replace", stage, when)


def _marked(moment: Moment, stage: str, when: Callable[[Any], bool] | None) -> Callable[[Any], Any]:
    _must_be_possible(moment, stage)
    if inspect.iscoroutinefunction(when):
        raise BadPlugin(f"when= of @{moment}({stage!r}) is async; write a plain function.")

    def mark(method: Callable[..., Any]) -> Callable[..., Any]:
        if moment == "around" and not inspect.iscoroutinefunction(method):
            raise BadPlugin(
                f"{method.__qualname__} wraps a stage and has to await it, so it must be an "
                "async def."
            )
        marks = (HookMark(moment=moment, stage=stage, when=when), *getattr(method, _MARK, ()))
        setattr(method, _MARK, marks)
        return method

    return mark


def _must_be_possible(moment: Moment, stage: object) -> None:
    """Raise BadPlugin if `moment` is not possible at `stage`."""
    if not isinstance(stage, str):
        raise BadPlugin(f'@{moment} has no stage: write @{moment}("describe"), or another stage.')
    row = STAGES.get(stage)
    if row is None:
        near = get_close_matches(stage, STAGES, n=1)
        meant = f"perhaps {near[0]!r} is meant" if near else f"there are {', '.join(STAGES)}"
        raise BadPlugin(f"@{moment}({stage!r}): no stage has this name; {meant}.")
    if moment not in row.moments:
        why = (
            "is a guard"
            if row.is_guard
            else "stores its result"
            if row.writes
            else "is the person's own decision"
        )
        raise BadPlugin(
            f"@{moment}({stage!r}): {stage} {why}, so it has no {moment} hooks. Use "
            f"{' or '.join(row.moments)}."
        )


def hooks_of(plugin: object) -> tuple[PluginHook[Any], ...]:
    """Return the plugin's hooks in definition order, those of base classes first.

    Raises BadPlugin if the object has no hooks or is a class.
    """
    if isinstance(plugin, type):
        raise BadPlugin(
            f"{plugin.__name__} is a class, but a plugin is an object. So write "
            f"{plugin.__name__}(), and name that object."
        )
    found = tuple(_found(plugin))
    if not found:
        raise BadPlugin(
            f"A {type(plugin).__name__} has no hooks. Mark its methods, as in "
            '@after("settle") (from flows.hooks import after).'
        )
    return found


def _found(plugin: object) -> Iterator[PluginHook[Any]]:
    names = [name for kind in reversed(type(plugin).__mro__) for name in vars(kind)]
    for name in dict.fromkeys(names):
        attribute = inspect.getattr_static(plugin, name)
        marks = cast("tuple[HookMark, ...]", getattr(attribute, _MARK, ()))
        for mark in marks:
            yield PluginHook(
                moment=mark.moment,
                stage=STAGES[mark.stage],
                when=mark.when,
                call=getattr(plugin, name),
                plugin=type(plugin).__name__,
                method=name,
            )


def must_only_reduce(schema: Schema[Any], typed: Json, reduced: Json) -> None:
    """Check that a hook only removed fields, choices or characters from an answer.

    Raises HookMisused, naming the field, for any other change.
    """
    was, now = cast("Mapping[str, Json]", typed), cast("Mapping[str, Json]", reduced)
    for asked in schema.fields:
        is_present = asked.name in now
        if is_present and not _is_reduced(asked, was.get(asked.name), now[asked.name]):
            raise HookMisused(
                f"It changes {asked.name}: a hook can remove characters from a text or replace "
                "them with *, remove choices, and remove fields."
            )


def _is_reduced(asked: Field, typed: Json, reduced: Json) -> bool:
    if type(reduced) is type(typed) and reduced == typed:
        return True
    match asked.kind:
        case "string" if asked.limits.format in (None, "multiline"):
            return (
                isinstance(reduced, str)
                and isinstance(typed, str)
                and _is_shortened(typed, reduced)
            )
        case "choices":
            return (
                isinstance(reduced, list)
                and isinstance(typed, list)
                and all(one in typed for one in reduced)
                and len(reduced) <= len(typed)
            )
        case _:
            return False


def _is_shortened(typed: str, reduced: str) -> bool:
    rest = iter(typed)
    return len(reduced) <= len(typed) and all(one in rest for one in reduced.replace("*", ""))
