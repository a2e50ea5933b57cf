"""Wrong calls of verbs, explained to the author of the tool.

Risks: the model receives the author's mistake as an error that blames the model's input, or as the
library's "Error executing tool", which explains nothing. Each wrong call therefore raises an error
that says what to write, and names the line of the author's code.
"""

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from functools import cached_property, partial
from types import FrameType, NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Union, cast

from flows.elicitation.traits import traits_of
from flows.errors import (
    ElicitError,
    InvalidQuestion,
    InvalidSchema,
    NotAsked,
    NotConfigured,
    QuestionChanged,
    ResultNotStored,
)
from flows.shown import counted, is_too_long

# Questions that were created in a call but not asked.
#
# Risks: a verb without `await` does nothing, and the tool goes on as if the person had paid. A call
# therefore tracks the questions created in it, and by its end each must be asked or discarded.
# Questions are tracked by identity: of two equal questions, the tool may have asked only one.
# Questions that are created while a module is imported belong to no call.

_LIBRARY_PACKAGES = ("flows", "dataclasses", "contextlib")
GATE_MARK: Final = "__elicit_gate__"
NEEDS_MARK: Final = "__elicit_needs__"
_CAN_AWAIT = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnaskedQuestion:
    """A question that a call created and has not asked or discarded yet, and its place in the code.

    An async verb that was called is tracked too, until it is awaited. Its `kind` is its own name.
    """

    kind: str
    path: str
    line: int
    place: str
    in_def: bool  # created in a function that cannot await
    among: "dict[UnaskedQuestion, None]" = field(repr=False)

    @property
    def is_verb(self) -> bool:
        """True for an async verb, such as `elicit.once`, which is no question."""
        return "." in self.kind

    def settle(self) -> None:
        """Mark the question as asked or discarded."""
        self.among.pop(self, None)


class Unasked:
    """The questions of one call, or of an inner call, that are still to be asked."""

    def __init__(self, outer: "Unasked | None" = None) -> None:
        self._outer = outer
        self._questions: dict[
            UnaskedQuestion, None
        ] = {}  # ordered; a tool may run in its own thread

    def add(self, kind: str) -> UnaskedQuestion | None:
        """Track a question of this kind that the caller of the library has just created."""
        found = _frame_of_call()
        if found is None:
            return None
        code, line = found[0].f_code, found[1]
        question = UnaskedQuestion(
            kind=kind,
            path=code.co_filename,
            line=line,
            place=_place(code.co_filename, line),
            in_def=not code.co_flags & _CAN_AWAIT,
            among=self._questions,
        )
        self._questions[question] = None
        return question

    def __bool__(self) -> bool:
        return bool(self._questions)

    @property
    def stops_what_follows(self) -> list[UnaskedQuestion]:
        """The unasked questions of this call and its outer calls that block all later actions."""
        outer = self._outer.stops_what_follows if self._outer is not None else []
        own = [
            question
            for question in list(self._questions)
            if not question.is_verb and traits_of(question.kind).stops_what_follows
        ]
        return [*outer, *own]

    def pop_all(self) -> list[UnaskedQuestion]:
        """Return all questions and forget them, so that they are reported only once."""
        questions = list(self._questions)
        self._questions.clear()
        return questions


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCode:
    """The running code: its Asker, its unasked questions, and its ToolBody."""

    asker: Any
    unasked: Unasked
    body: Any
    is_tool: bool | None = True  # None for code that only completes questions


running: ContextVar[RunningCode] = ContextVar("elicit_asker")


def never_asked(questions: list[UnaskedQuestion], *, has_raised: bool = False) -> NotAsked:
    """Return the error for these questions. If all are async verbs, it names the first verb.

    With `has_raised`, the tool itself raised an error. The unasked questions may not be its cause.
    """
    found = [one for one in questions if not one.is_verb] or questions
    error = NotAsked(
        *dict.fromkeys(one.place for one in found),
        in_def=any(one.in_def and not one.is_verb for one in found),
        verb=found[0].kind if found[0].is_verb else None,
    )
    if has_raised:
        why = f"The tool raised an error, which is in the server's log. A possible cause: {error}"
        error.args = (why,)
    return error


def place_of_call(*, also_at_import: bool = False) -> str | None:
    """Return the file name and line of the author's call.

    Return None if this project's own code made the call. Also return None while a module is
    imported, unless `also_at_import` is set.
    """
    found = _frame_of_call(also_at_import=also_at_import)
    return None if found is None else _place(found[0].f_code.co_filename, found[1])


def _place(path: str, line: int) -> str:
    """Return the file name and line. Omit the folder, because others may read the error."""
    name = path.replace("\\", "/").rpartition("/")[2]
    return f"{name}:{line}"


def _frame_of_call(*, also_at_import: bool = False) -> tuple[FrameType, int] | None:
    """Return the frame and the line of the author's call, or None, as `place_of_call` does."""
    frame = inspect.currentframe()
    found: tuple[FrameType, int] | None = None
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package == "asyncio":  # frames further out do not belong to the call
            break
        if found is None and package == "webapp":  # this project itself asks, as for a gate
            return None
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            return found if also_at_import else None
        if found is None and package not in _LIBRARY_PACKAGES:
            found = frame, frame.f_lineno
        frame = frame.f_back
    return found


class InvalidUse(InvalidQuestion):
    """A tool calls a verb wrongly. This is a bug in the tool's code, which the model cannot fix.

    Code outside a tool gets InvalidQuestion instead, whose traceback shows the line.
    """

    name = "ELICITATION_INVALID_USE"
    jsonrpc_code = -32603
    http_status = 500

    def __init__(self, why: str, *, place: str | None) -> None:
        self.place: str | None = place
        where = "the tool's code" if place is None else f"the code at {place}"
        super().__init__(
            f"{why} This is a bug in {where}: calling the tool again with the same arguments does "
            "not help."
        )


class Explained:
    """A value that tools get. Its wrong uses are explained to the author of the tool.

    Outside of a tool, a wrong use raises the exception that Python raises.
    """

    __slots__ = ()

    if not TYPE_CHECKING:  # hidden from type checkers, so that they report the wrong use

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):  # Python's own protocols probe for such names
                raise AttributeError(name)
            own = [one for one in dir(type(self)) if not one.startswith("_")]
            raise_unknown(f"{type(self).__name__}.", name, own)

        def __getitem__(self, item: object) -> NoReturn:
            kind = type(self).__name__
            name = item if isinstance(item, str) else "attribute"
            raise_misuse(f"{kind} is not a dict or a list. Write {kind}.{name}.", TypeError)


def raise_unknown(owner: str, name: str, names: Sequence[str]) -> NoReturn:
    """Raise the error for a name that `owner` (a prefix with its dot) does not have."""
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    meant = f"Perhaps {owner}{near[0]} is meant" if near else f"It has {', '.join(names)}"
    raise_misuse(f"There is no {owner}{name}. {meant}.", AttributeError, name)


def raise_misuse(why: str, plain: type[Exception], name: str | None = None) -> NoReturn:
    """Raise InvalidUse, as a subclass of `plain`, in a tool. Raise `plain` outside of tools.

    `name` is the missing attribute, if `plain` is AttributeError.
    """
    error: Any = type("InvalidUse", (InvalidUse, plain), {})(why, place=place_of_call())
    if (here := running.get(None)) is not None and here.is_tool:
        here.asker.failed(error)
    else:
        error = plain(why)
    if isinstance(error, AttributeError):
        # An assignment to `error.name` would be overwritten by Python when the error is raised.
        vars(AttributeError)["name"].__set__(error, name)
    raise error


def located(error: ElicitError, place: str | None = None) -> ElicitError:
    """Return the error with its place in the author's code: `place`, or the line of the call.

    An InvalidQuestion itself becomes InvalidUse. An error of a subclass becomes InvalidUse if its
    wrong values are constants in the author's code. The other errors that an author causes get the
    place in their message, unless they have a place already. All other errors are unchanged.
    """
    place = place or place_of_call()
    if type(error) is InvalidQuestion or (isinstance(error, InvalidQuestion) and _is_fixed(error)):
        return InvalidUse(str(error), place=place)
    is_name = isinstance(error, NotConfigured) and error.is_unknown_name
    is_authors = is_name or isinstance(error, InvalidSchema | ResultNotStored | QuestionChanged)
    if is_authors and place is not None and error.place is None:
        error.place = place
        error.args = (f"{error} The code is at {place}.",)
    return error


def _is_fixed(error: InvalidQuestion) -> bool:
    """Return True if all wrong values are constants in the author's code, not from a model."""
    found = _frame_of_call()
    if not error.values or found is None:
        return False
    fixed: tuple[object, ...] = found[0].f_code.co_consts
    return all(any(one == value for one in fixed) for value in error.values)


def must_be_listed(name: str, given: object) -> None:
    """Raise InvalidQuestion if `given` is not a list of texts.

    Refuse a str too: it would be read as a list of its characters.
    """
    if isinstance(given, str):
        raise InvalidQuestion(f"{name} is a list: {name}=[{given!r}].")
    many = cast("Sequence[object]", given) if isinstance(given, Sequence | AbstractSet) else None
    if many is None or not all(isinstance(one, str) for one in many):
        raise InvalidQuestion(f'{name} must be a list of texts, as in {name}=["..."].')


def must_take(function: Callable[..., object] | None, number: int, *, name: str) -> None:
    """Raise InvalidQuestion if the author's function cannot take this number of arguments."""
    if function is None:
        return
    must_run_when_called(function, name)
    try:
        inspect.signature(function).bind(*[None] * number)
    except TypeError:
        many = counted(number, "argument")
        raise InvalidQuestion(f"{name} must be a function that takes {many}.") from None
    except ValueError:  # a function written in C has no signature
        return


def must_run_when_called(function: Callable[..., object], name: str) -> None:
    """Raise InvalidQuestion for a generator function, or a function that `gate` or `needs` marks.

    A call of a generator function runs none of its code. A plain call of a marked function does not
    ask the question of the mark.
    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidQuestion(
            f"{name} contains `yield`, so calling it runs none of its code. Write a function that "
            "returns its value."
        )
    while isinstance(function, partial):
        function = cast("partial[object]", function).func
    gate = getattr(function, GATE_MARK, None)
    if (gate is not None and not gate.is_off) or getattr(function, NEEDS_MARK, None):
        raise InvalidQuestion(
            f"{name} is marked with gate or needs, but it is called as a plain function here, so "
            "nobody is asked. Pass a function without the mark."
        )


class VerbParameters:
    """The parameters of a verb, to check a call before the verb runs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._signature = inspect.signature(function)
        own = function.__qualname__.removesuffix(".__init__")
        self._checks_itself = own != function.__qualname__
        self._name = own if own[0].isupper() else f"elicit.{own}"

    @cached_property
    def _types(self) -> Mapping[str, tuple[Any, ...]]:
        """The accepted values of each parameter whose annotation can be checked."""
        hints = typing.get_type_hints(self._function)
        found = {name: _accepted(hints[name]) for name in self._named if name in hints}
        return {name: accepted for name, accepted in found.items() if accepted}

    @cached_property
    def _named(self) -> list[str]:
        """The parameters except *args and **kwargs. Empty for a class: it checks them itself."""
        if self._checks_itself:
            return []
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        each = self._signature.parameters.items()
        return [name for name, parameter in each if parameter.kind not in variadic]

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Check the arguments of a call. Raises InvalidQuestion."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidQuestion(f"{self._name}: {error}. Write {self._usage}.") from None
        for name, value in bound.arguments.items():
            accepted = self._types.get(name)
            if accepted is not None and not any(
                # a str in `accepted` is the `repr` of an allowed value
                repr(value) == one if isinstance(one, str) else isinstance(value, one)
                for one in accepted
            ):
                names = " or ".join(map(_shown, accepted))
                raise InvalidQuestion(
                    f"{self._name}: {name} must be {names}, not {type(value).__name__}."
                )
            if accepted and is_too_long(value):
                raise InvalidQuestion(f"{self._name}: {name} is a number with too many digits.")

    def broken_by(self, error: Exception) -> InvalidQuestion:
        """Return the error for a call whose arguments made the verb raise `error`."""
        why = str(error).partition("\n")[0].rstrip(".")
        return InvalidQuestion(
            f"{self._name} cannot use these arguments: {type(error).__name__}: {why}. Write "
            f"{self._usage}."
        )

    @property
    def name(self) -> str:
        return self._name

    @property
    def _usage(self) -> str:
        """The call with its parameters, such as `elicit.payment(price, what, *, provider)`."""
        parts: list[str] = []
        for parameter in self._signature.parameters.values():
            if parameter.name == "self":
                continue
            is_named = parameter.kind is inspect.Parameter.KEYWORD_ONLY
            parts.append(f"{parameter.name}=..." if is_named else parameter.name)
        return f"{self._name}({', '.join(parts)})"


def _accepted(hint: Any) -> tuple[Any, ...]:
    """Return the classes and values that a hint accepts; empty if the hint cannot be checked."""
    origin = typing.get_origin(hint)
    if origin in (Union, UnionType):
        each = [_accepted(one) for one in typing.get_args(hint)]
        return tuple(one for some in each for one in some) if all(each) else ()
    if origin is Literal:
        return tuple(map(repr, typing.get_args(hint)))
    found = hint if origin is None else origin
    # The verbs check these types themselves, with more helpful messages.
    is_checked = isinstance(found, type) and found not in (Any, type, timedelta, Sequence)
    return (found,) if is_checked and not getattr(found, "_is_protocol", False) else ()


def _shown(accepted: Any) -> str:
    if accepted is NoneType:
        return "None"
    return accepted if isinstance(accepted, str) else _SHOWN.get(accepted, accepted.__name__)


_SHOWN: Mapping[Any, str] = {Callable: "a function", Mapping: "a dict"}
