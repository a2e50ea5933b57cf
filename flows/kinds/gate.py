"""The gate: a tool that waits for a person's approval before its body starts.

What could go wrong: a person approves what they did not see. What an approval covers is the digest
of all arguments and of what is shown, which is all that the body will receive. A mark that is on
another machine is not seen: of a remote server's tool (FastMCP's ProxyTool), its annotation and the
operator's patterns are.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from types import MethodType
from typing import Any, Final, TypeVar, cast, overload

from flows.elicitation.states import Json
from flows.errors import InvalidQuestion
from flows.kinds.form import Form, must_be_approver, timeout_for
from flows.kinds.tool_marks import (
    keep_mark,
    keep_mark_on,
    layers_of,
    must_mark_a_tool,
    own_layer,
)
from flows.question import DEFAULT_TIMEOUT, MESSAGE_AT_MOST, Question
from flows.schema.schema import schema_of
from flows.shown import TOOL_CHARACTERS_AT_MOST, must_be_tool_name

ToolT = TypeVar("ToolT", bound=Callable[..., Any])
APPROVED_FOR: Final = timedelta(minutes=15)  # the same tool with the same arguments
REMEMBERED_FOR: Final = timedelta(hours=1)  # the tool with any, where a person chose that
_MARK: Final = "__elicit_gate__"
# The name of the tool stands behind the message, also where a client shows nothing else.
MESSAGE_CHARACTERS_AT_MOST: Final = MESSAGE_AT_MOST - TOOL_CHARACTERS_AT_MOST - len(" ()")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What is asked before a tool; `is_off` frees it from the policy for destructive tools.

    `approver` decides in the place of whoever calls it.
    """

    message: str | None = None
    approver: str | None = None
    timeout: timedelta = DEFAULT_TIMEOUT
    is_off: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GatePolicy:
    """Which tools are gated without a mark: by their annotation, and by patterns of names."""

    gates_destructive: bool = True
    patterns: tuple[str, ...] = ()

    def gate_of(self, tool: str, *, mark: Gate | None, is_destructive: bool) -> Gate | None:
        """The gate before a tool, if there is one.

        A mark opens what the annotation would gate; it does not open what the operator has named.
        """
        is_named = any(fnmatchcase(tool, pattern) for pattern in self.patterns)
        is_free = mark is not None and mark.is_off
        if mark is not None and not mark.is_off:
            return mark
        if is_named or (self.gates_destructive and is_destructive and not is_free):
            return Gate()
        return None


@overload
def gate(tool: ToolT) -> ToolT: ...
@overload
def gate(
    *,
    message: str | None = None,
    approver: str | None = None,
    timeout: timedelta | None = None,
    off: bool = False,
) -> Callable[[ToolT], ToolT]: ...
def gate(
    tool: Any = None,
    *,
    message: str | None = None,
    approver: str | None = None,
    timeout: timedelta | None = None,
    off: bool = False,
) -> Any:
    """Decorate a tool: it waits for a person's approval before its body starts.

    `@gate`, or `@gate(message=..., timeout=...)`, above or below what makes it a tool. With
    `approver` somebody else than the caller decides, as for `confirm`; a yes is for one run with
    these very arguments, within a day. Without a `timeout` it is asked for 5 minutes, of an
    approver for a day. With `off` it waits for none, although it is annotated as destructive,
    unless the operator names it in ELICIT_GATE. `off` opens only the function that it stands on,
    and what wraps that: where another decorator stands between it and the tool, the gate stays
    shut. Raises InvalidQuestion, also for `off` on a bound method or where there is a gate's mark
    already.
    """
    must_mark_a_tool("gate")
    mark = Gate(
        message=message,
        approver=must_be_approver(approver),
        timeout=timeout_for(approver, given=timeout),
        is_off=off,
    )
    if message is not None and not 0 < len(message.strip()) <= MESSAGE_CHARACTERS_AT_MOST:
        raise InvalidQuestion(
            f"The gate's message has 1 to {MESSAGE_CHARACTERS_AT_MOST} characters: leave it out or "
            "say what a yes does."
        )
    # A bad one fails here.
    _ = gate_question(mark, tool="t", arguments="{}", shown={}, can_be_kept=False)

    def marked(function: Any) -> Any:
        if not (_open(function, mark) if off else _shut(function, mark)):
            name = type(function).__name__
            raise InvalidQuestion(f"A {name} cannot be marked with gate: mark its function.")
        return function

    if tool is None:
        return marked
    if not callable(tool):
        raise InvalidQuestion("gate marks a tool's function: write @gate or @gate(message=...).")
    return marked(tool)


def mark_of(function: Callable[..., Any] | None) -> Gate | None:
    """The mark on a tool's function, also below decorators that use `functools.wraps`.

    The outermost one; but one that opens (`off`) opens no gate that is marked below it.
    """
    found = (getattr(layer, _MARK, None) for layer in layers_of(function))
    marks = [mark for mark in found if isinstance(mark, Gate)]
    return next((mark for mark in marks if not mark.is_off), marks[0] if marks else None)


def gate_question(
    gate: Gate, *, tool: str, arguments: str, shown: Mapping[str, Json], can_be_kept: bool
) -> Question[Mapping[str, Json]]:
    """Ask for an approval of one call; `arguments` are its own, as canonical JSON.

    `shown` is what the body will receive, all of it. A yes covers both, and `can_be_kept`: it holds
    for later calls too. Raises InvalidQuestion for what a person cannot be shown whole.
    """
    must_be_tool_name(tool)
    message = gate.message
    if message is None:
        message = f"Run {tool}?"
    elif tool not in message:
        message = f"{message} ({tool})"
    return Question(
        message=message,
        request=Form(
            message=message,
            schema=schema_of({"type": "object", "properties": {}}),
            arguments=shown,
            covers=digest_of_arguments(f"{arguments}\n{arguments_text(shown)}"),
            can_be_kept=can_be_kept and gate.approver is None,
            approver=gate.approver,
        ),
        answer=_nothing_more,
        timeout=gate.timeout,
    )


def arguments_text(arguments: object) -> str:
    """The arguments of a call, by which it is the same as another one.

    A body sees the order within each of them, and two keys of an object can be one there: so only
    the order of the arguments themselves does not count.
    """
    if isinstance(arguments, Mapping):
        named = cast("Mapping[str, object]", arguments)
        arguments = {name: named[name] for name in sorted(named)}
    return json.dumps(arguments, default=str)


def digest_of_arguments(arguments: str) -> str:
    """Of all of them; they are canonical JSON."""
    return hashlib.sha256(arguments.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _shut(function: object, mark: Gate) -> bool:
    """Mark every layer; one that is another tool's too, and gated, keeps its own words."""
    own = own_layer(function)

    def of_layer(layer: object) -> Gate:
        before = mark_of(cast("Callable[..., Any]", layer))
        return mark if layer is own or before is None or before.is_off else before

    return keep_mark(function, _MARK, of_layer)


def _open(function: object, mark: Gate) -> bool:
    """Mark one layer; what is below it may be another tool's too."""
    own = own_layer(function)
    if isinstance(own, MethodType):
        name = getattr(own, "__qualname__", "it")
        raise InvalidQuestion(
            f"gate(off=True) on a bound method would open {name} for every object: mark a function "
            "that calls it, or the method in its class."
        )
    before = mark_of(cast("Callable[..., Any]", own))
    if before is not None and not before.is_off:
        raise InvalidQuestion(
            "It is marked with gate already, itself or what it wraps, and off=True opens no gate "
            "that an author set: take that mark away, or leave out functools.wraps."
        )
    return keep_mark_on(own, _MARK, mark)


def _nothing_more(_: Json) -> Mapping[str, Json]:
    return cast("Mapping[str, Json]", {})
