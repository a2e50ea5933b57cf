"""Wrong calls of verbs, explained to the author of the tool.

Risks: an author's mistake reaches the model with a code that says that the model's input is wrong,
or as the library's "Error executing tool". Each wrong call therefore ends in a sentence that says
what to write, and names the line of the author's code.
"""

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from types import NoneType, UnionType
from typing import Any, Literal, Union

from flows.elicitation.unasked import place_of_call
from flows.errors import ElicitError, InvalidQuestion, InvalidSchema


class InvalidUse(InvalidQuestion):
    """A tool calls a verb wrongly. This is a bug in the tool's code, which the model cannot fix.

    `place` is the file and the line of the call. Code outside a tool gets InvalidQuestion instead,
    whose traceback shows the line.
    """

    name = "ELICITATION_INVALID_USE"
    jsonrpc_code = -32603
    http_status = 500

    def __init__(self, why: str, *, place: str | None) -> None:
        self.place = place
        where = "the tool's code" if place is None else f"the code at {place}"
        super().__init__(
            f"{why} This is a bug in {where}: calling the tool again with the same arguments does "
            "not help."
        )


def located(error: ElicitError) -> ElicitError:
    """Return the error with the line of the author's call that is running now.

    An error that is about something else, or that names its line already, is returned unchanged.
    """
    if type(error) is InvalidQuestion:
        return InvalidUse(str(error), place=place_of_call())
    if type(error) is InvalidSchema and (place := place_of_call()) is not None:
        return _LocatedSchema(f"{error} The question is created at {place}.")
    return error


class _LocatedSchema(InvalidSchema):
    """An InvalidSchema whose message names the line."""


class VerbParameters:
    """The parameters of a verb, to check a call before the verb runs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._signature = inspect.signature(function)
        own = function.__qualname__.replace(".__init__", "")
        self._name = own if own[0].isupper() else f"elicit.{own}"

    @cached_property
    def _types(self) -> Mapping[str, tuple[Any, ...]]:
        """The accepted values of each parameter whose annotation can be checked."""
        hints = typing.get_type_hints(self._function)
        found = {name: _accepted(hints[name]) for name in self._named if name in hints}
        return {name: accepted for name, accepted in found.items() if accepted}

    @cached_property
    def _named(self) -> list[str]:
        """The parameters for one argument each. A class checks its arguments itself."""
        if self._name[0].isupper():
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
            if accepted is not None and not any(_accepts(one, value) for one in accepted):
                names = " or ".join(map(_shown, accepted))
                raise InvalidQuestion(
                    f"{self._name}: {name} must be {names}, not {type(value).__name__}."
                )

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
    # The verbs have better sentences of their own for these types.
    is_checked = isinstance(found, type) and found not in (type, timedelta, Sequence, Any)
    return (found,) if is_checked and not getattr(found, "_is_protocol", False) else ()


def _accepts(accepted: Any, value: object) -> bool:
    return repr(value) == accepted if isinstance(accepted, str) else isinstance(value, accepted)


def _shown(accepted: Any) -> str:
    if accepted is NoneType:
        return "None"
    return accepted if isinstance(accepted, str) else accepted.__name__
