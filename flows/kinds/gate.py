"""The marks `gate` and `needs` of a tool: questions that are asked before its body starts.

Risks: a person approves something they did not see. The page therefore shows everything that the
body will receive. The approval stores a digest of the call's arguments and of the displayed values,
and counts only for calls with the same digest. The server cannot see the `@gate` marks of another
machine: for a remote server's tool (FastMCP's ProxyTool), only the tool's annotation and the
operator's patterns count.
"""

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import partial
from types import MethodType
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast, overload, runtime_checkable

from flows.elicitation.misuse import GATE_MARK, NEEDS_MARK, must_take, place_of_call
from flows.elicitation.states import Json
from flows.elicitation.tool_call import DescribedTool
from flows.errors import InvalidQuestion
from flows.kinds.form import Form, must_be_approver, timeout_for
from flows.kinds.secret import Secret
from flows.question import (
    DEFAULT_TIMEOUT,
    MESSAGE_AT_MOST,
    Question,
    asks_in_tool,
    asks_without_tool,
    current_asker,
    reporting_errors,
    verb,
)
from flows.requests import AccountRequest, PaymentRequest
from flows.schema.schema import schema_of
from flows.shown import TOOL_CHARACTERS_AT_MOST, must_be_tool_name

# Marks on a tool, stored on its function and on every function that it wraps.
#
# Risks: a mark is not found. The mark is therefore written to all layers (the tool and everything
# that it wraps), so the order of decorators does not matter. A decorator that hides what it wraps
# (without `functools.wraps`) also hides the marks below it. A mark that removes a gate could also
# affect another tool that shares a layer, so such a mark is written to one layer only
# (`_open`).


F = TypeVar("F", bound=Callable[..., Any])


def must_mark_a_tool(mark: str, *, is_applied: bool = True) -> None:
    """Raise InvalidQuestion for a mark in an `asking` block or, with `is_applied`, in a tool.

    Never raise while a module is imported.
    """
    if place_of_call() is None:
        return
    if asks_without_tool():
        raise InvalidQuestion(
            f"{mark} marks a tool of an MCP server, and an `asking` block is not a tool. Await "
            "the questions themselves here."
        )
    if is_applied and asks_in_tool():
        raise InvalidQuestion(
            f"{mark} inside a tool asks nobody. Await elicit.confirm(...) here instead."
        )


def _decorator(mark: str, write: Callable[[object], bool]) -> Callable[[F], F]:
    """Return the decorator of a mark. `write` sets the mark and returns False if it cannot."""

    def marked(tool: F) -> F:
        with reporting_errors():
            must_mark_a_tool(mark)
            if not write(tool):
                kind = type(tool).__name__
                raise InvalidQuestion(f"{mark} is a decorator for a tool's function, not a {kind}.")
        return tool

    return marked


def layers_of(tool: object) -> list[object]:
    """Return the tool and everything that it wraps: functions, methods, partials, library tools."""
    layer, layers, seen = tool, list[object](), set[int]()
    while layer is not None and id(layer) not in seen:
        seen.add(id(layer))
        layers.append(layer)
        if isinstance(layer, partial):
            layer = cast("partial[object]", layer).func
            continue
        below = ((name, getattr(layer, name, None)) for name in ("__wrapped__", "__func__", "fn"))
        name, inner = next((each for each in below if callable(each[1])), ("", None))
        # For a callable object, the library serves the object's `__call__` method.
        is_call = name == "__func__" and getattr(inner, "__name__", "") == "__call__"
        layer = getattr(layer, "__self__", None) if is_call else inner
    return layers


def set_mark(tool: object, name: str, mark: Callable[[object], object]) -> bool:
    """Set each layer's mark to the result of `mark`. Return False if nothing could be marked."""
    layers = layers_of(tool)
    # If `@mcp.tool` ran before the mark, the server calls an inner layer: mark all layers.
    if isinstance(tool, partial):  # do not mark its function, which may be another tool
        layers = layers[:1]
    marked = [(layer, mark(layer)) for layer in layers]
    is_written = [_write(layer, name, value) for layer, value in marked]
    return any(is_written) and any(map(callable, layers))


def own_layer(tool: object) -> object:
    """Return the layer that belongs to this tool only: the function itself, or a tool's `fn`."""
    if isinstance(tool, staticmethod):
        return cast("staticmethod[..., object]", tool).__func__
    function: object = getattr(tool, "fn", None)  # attribute of the libraries' tool objects
    return function if callable(function) else tool


def _write(layer: object, name: str, value: object) -> bool:
    try:
        setattr(layer, name, value)
    except (AttributeError, TypeError, ValueError):  # a bound method, or a library's pydantic model
        return False
    return True


APPROVED_FOR: Final = timedelta(minutes=15)  # how long an approval counts for the same arguments
# how long an approval counts for any arguments, if the person chose that
REMEMBERED_FOR: Final = timedelta(hours=1)
# The tool's name follows the message, because some clients show nothing else.
MESSAGE_CHARACTERS_AT_MOST: Final = MESSAGE_AT_MOST - TOOL_CHARACTERS_AT_MOST - len(" ()")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The question before a tool. `approver` decides instead of the caller.

    `is_off` exempts a tool from the policy for destructive tools.
    """

    message: str | None = None
    approver: str | None = None
    timeout: timedelta = DEFAULT_TIMEOUT
    is_off: bool = False
    place: str | None = field(default=None, compare=False)  # the line of the mark


@dataclass(frozen=True, slots=True, kw_only=True)
class GatePolicy:
    """The tools that are gated without a mark: by annotation and by name patterns."""

    gates_destructive: bool = True
    patterns: tuple[str, ...] = ()

    def gate_of(self, tool: str, *, mark: Gate | None, is_destructive: bool) -> Gate | None:
        """Return the tool's gate, or None.

        A mark with off=True overrides the annotation, but not the operator's patterns.
        """
        is_named = any(fnmatchcase(tool, pattern) for pattern in self.patterns)
        is_free = mark is not None and mark.is_off
        if mark is not None and not mark.is_off:
            return mark
        if is_named or (self.gates_destructive and is_destructive and not is_free):
            return Gate()
        return None


@overload
def gate(tool: F) -> F: ...
@overload
def gate(
    *,
    message: str | None = None,
    approver: str | None = None,
    timeout: timedelta | None = None,
    off: bool = False,
) -> Callable[[F], F]: ...
@verb
def gate(
    tool: Any = None,
    *,
    message: str | None = None,
    approver: str | None = None,
    timeout: timedelta | None = None,
    off: bool = False,
) -> Any:
    """Decorate a tool, so that it waits for a person's approval before its body starts.

    Use `@gate` or `@gate(message=..., timeout=...)`, above or below the tool's decorator.

    Args:
        tool: The tool, if you write `@gate` without parentheses.
        message: A sentence that says what happens when the person accepts. The page also shows the
            tool and its arguments.
        approver: The people who decide instead of the caller, as for `confirm`. An approval is
            valid for one run with exactly these arguments, within a day.
        timeout: 5 minutes by default, a day with `approver`.
        off: Don't ask, even if the tool is annotated as destructive. If the operator names the tool
            in ELICIT_GATE, the person is still asked. The mark applies to the decorated function
            and to functions that wrap it with `functools.wraps`, but not to functions that it
            wraps. If another decorator is between `@gate(off=True)` and the tool's decorator below,
            the mark has no effect and the gate stays.

    Returns:
        The tool itself, or a decorator that returns it.

    Raises:
        InvalidQuestion: An argument is invalid, the object cannot be marked, or `off` is used on a
            bound method or on a function that already has a gate.
    """
    must_mark_a_tool("gate", is_applied=False)
    mark = Gate(
        message=message,
        approver=must_be_approver(approver),
        timeout=timeout_for(approver, given=timeout),
        is_off=off,
        place=place_of_call(also_at_import=True),
    )
    if message is not None and not 0 < len(message.strip()) <= MESSAGE_CHARACTERS_AT_MOST:
        raise InvalidQuestion(
            f"The gate's message must have 1 to {MESSAGE_CHARACTERS_AT_MOST} characters. Leave it "
            "out, or write what happens when the person accepts."
        )
    # Fail at import if the mark is invalid.
    gate_question(mark, tool="t", arguments="{}", shown={}, can_be_stored=False).discard()

    marked = _decorator("gate", partial(_open if off else _shut, mark=mark))
    if tool is None:
        return marked
    if not callable(tool):
        raise InvalidQuestion(
            "gate is a decorator for a tool's function. Write @gate or @gate(message=...)."
        )
    return marked(tool)


def mark_of(function: Callable[..., Any] | None) -> Gate | None:
    """Return the mark on a tool's function, also below decorators that use `functools.wraps`.

    The outermost mark wins, but a mark with off=True does not override a gate below it.
    """
    found = (getattr(layer, GATE_MARK, None) for layer in layers_of(function))
    marks = [mark for mark in found if isinstance(mark, Gate)]
    return next((mark for mark in marks if not mark.is_off), marks[0] if marks else None)


def gate_question(
    gate: Gate,
    *,
    tool: str,
    arguments: str,
    shown: Mapping[str, Json],
    can_be_stored: bool,
    described: DescribedTool | None = None,
) -> Question[Mapping[str, Json]]:
    """Return the question that asks to approve one call.

    `arguments` are the call's arguments as canonical JSON. `shown` is everything that the body will
    receive. An approval covers both. `described` is the tool in its author's words. With
    `can_be_stored`, the approval can also count for later calls.

    Raises:
        InvalidQuestion: The tool's name is invalid, or a page cannot show everything.
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
            can_be_stored=can_be_stored and gate.approver is None,
            approver=gate.approver,
            described=described,
        ),
        answer=_nothing_more,
        timeout=gate.timeout,
        place=gate.place,
    )


def arguments_text(arguments: object) -> str:
    """Return the arguments as text by which two calls are compared.

    The arguments are sorted. The keys inside an argument are not sorted: the tool's body sees their
    order, and JSON writes some different keys, such as 1 and "1", in the same way.
    """
    if isinstance(arguments, Mapping):
        named = cast("Mapping[str, object]", arguments)
        arguments = {name: named[name] for name in sorted(named)}
    return json.dumps(arguments, default=str)


def digest_of_arguments(arguments: str) -> str:
    """Return the digest of arguments in canonical JSON."""
    return hashlib.sha256(arguments.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _shut(function: object, mark: Gate) -> bool:
    """Mark the tool's function and every function that it wraps.

    A wrapped function that already has a gate keeps that gate. Return False if nothing could be
    marked.
    """
    own = own_layer(function)

    def of_layer(layer: object) -> Gate:
        before = mark_of(cast("Callable[..., Any]", layer))
        return mark if layer is own or before is None or before.is_off else before

    return set_mark(function, GATE_MARK, of_layer)


def _open(function: object, mark: Gate) -> bool:
    """Mark the outermost function only: functions that it wraps may belong to another tool."""
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
            "The function, or the function that it wraps, is already marked with gate, and "
            "off=True cannot remove that mark. Remove the mark, or leave out functools.wraps."
        )
    return callable(own) and _write(own, GATE_MARK, mark)


def _nothing_more(_: Json) -> Mapping[str, Json]:
    return cast("Mapping[str, Json]", {})


T = TypeVar("T")
SkipIf: TypeAlias = Callable[[Mapping[str, Json]], Awaitable[bool] | bool]
OnComplete: TypeAlias = Callable[..., Awaitable[object] | object]
NOT_NEEDED: Final = (
    "needed(...) reads the answer to a question that was asked before the tool began, and this "
    "question was not asked then. Mark the tool with @elicit.needs(...) and the same question, "
    "and check its skip_if."
)


@runtime_checkable
class NeedsHolder(Protocol):
    """An asker that has the answers to the questions of a tool's `needs` marks."""

    def needed(self, question: Question[T]) -> T:
        """Return the answer to a question of `needs`, as the verb `needed` does."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A `needs` mark: its questions and options."""

    questions: tuple[Question[Any], ...]
    hides: bool = False
    skip_if: SkipIf | None = None
    on_complete: OnComplete | None = None
    decline_message: str | None = None
    place: str | None = None  # the line of the mark


@verb
def needs(
    *questions: Question[Any],
    hide: bool = False,
    skip_if: SkipIf | None = None,
    on_complete: OnComplete | None = None,
    decline_message: str | None = None,
) -> Callable[[F], F]:
    """Mark a tool: the questions are asked in order at each call, before the tool's body starts.

    The body gets an answer by awaiting the same question, which is not asked again, or by
    `needed(question)`, which also works in a `def` tool. A body need not read the answers: it
    starts only when all questions are answered. A declined question ends the call. Several marks
    are asked from the top down, and a question that two marks share is asked once. Marks can be
    above or below the tool's own decorator. `skip_if` and `on_complete` may be async, use verbs,
    and raise NotAccepted to decline.

    Args:
        *questions: The questions, with their own options (`timeout=`, `key=`).
        hide: Omit the tool from tools/list until the caller has everything: the account is
            connected with these scopes, the purchase was made with `once=True`, the secret is
            stored by `name`. Clients are notified of changes. If another tool or the page of
            connections adds the account or secret, the tool is listed, and asks once whether it may
            use the account. A purchase can only be made by calling the hidden tool: mention its
            name in the server's instructions. `hide` does not protect the tool; the questions do.
        skip_if: Receives the arguments as the client sent them, unchecked. If it returns true,
            nothing is asked. In a later request of the same call, questions that were already asked
            are not skipped.
        on_complete: Receives the answers in order, once for each call, and only if a person was
            asked, not if the account, purchase or named secret already existed. For an anonymous
            caller nothing is stored, so `on_complete` runs each time that the body runs.
        decline_message: What the model reads if the person declined or did not answer.

    Returns:
        A decorator that returns the tool itself.

    Raises:
        InvalidQuestion: An argument is invalid, or `hide` is set for a question that is asked at
            each call.
    """
    if not questions:
        raise InvalidQuestion(
            "needs(...) needs at least one question, as in needs(elicit.oauth(github))."
        )
    for question in questions:
        if not isinstance(question, Question):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidQuestion(
                f"needs(...) accepts only questions, not a {type(question).__name__}. Write, "
                "for example, needs(elicit.oauth(github))."
            )
        if hide and not _is_stored(question):
            raise InvalidQuestion(
                f"{question.message!r} is asked at every call, so hide=True would hide the tool "
                "forever. Use hide=True only with oauth, payment(once=True) and "
                "secret(name=...)."
            )
    if decline_message is not None and not decline_message.strip():
        raise InvalidQuestion("decline_message is empty. Leave it out, or write a message.")
    must_take(skip_if, 1, name="skip_if")
    must_take(on_complete, len(questions), name="on_complete")
    for question in questions:
        question.discard()  # the question is asked at each call, not while the tool is marked
    must_mark_a_tool("needs(...)")
    need = Need(
        questions=questions,
        hides=hide,
        skip_if=skip_if,
        on_complete=on_complete,
        decline_message=decline_message,
        place=place_of_call(also_at_import=True),
    )

    return _decorator(
        "needs(...)",
        lambda tool: set_mark(tool, NEEDS_MARK, lambda layer: (need, *needs_of(layer))),
    )


@verb
def needed(question: Question[T]) -> T:
    """Return the answer to a question of `needs`, for a `def` tool, which cannot await.

    The library runs such a tool in a worker thread, where it may block. The body may call `needed`
    repeatedly, and awaiting the same question returns the same answer.

    Args:
        question: The same question as in `needs`.

    Returns:
        The answer.

    Raises:
        InvalidQuestion: The tool has no such `needs` mark, or its `skip_if` skipped the question.
            In a tool, the error is InvalidUse and names the line.
        NoAsker: No tool call is active.
    """
    question.discard()
    asker = current_asker()
    if not isinstance(asker, NeedsHolder):
        raise InvalidQuestion(NOT_NEEDED)
    return asker.needed(question)


def needs_of(tool: object) -> tuple[Need, ...]:
    """Return the marks on a function in the order in which they are asked."""
    for layer in layers_of(tool):
        marks: object = getattr(layer, NEEDS_MARK, None)
        if isinstance(marks, tuple):
            return cast("tuple[Need, ...]", marks)
    return ()


def _is_stored(question: Question[Any]) -> bool:
    match question.request:
        case AccountRequest():
            return True
        case PaymentRequest(once=once):
            return once
        case Secret(name=name):
            return name is not None
        case _:
            return False
