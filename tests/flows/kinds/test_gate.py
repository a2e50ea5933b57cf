"""Approval gates: which tools have a gate, what the gate asks, and what an answer covers."""

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial, wraps
from typing import Any, cast

import pytest

from flows import elicit
from flows.errors import Declined, InvalidQuestion
from flows.kinds.form import Form
from flows.kinds.gate import (
    MESSAGE_CHARACTERS_AT_MOST,
    Gate,
    GatePolicy,
    digest_of_arguments,
    gate_question,
    mark_of,
)
from flows.question import Question


def delete(count: int) -> int:
    return count


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function as an unrelated decorator does, with `functools.wraps` only."""

    @wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


def _request(question: Question[Any]) -> Form:
    assert isinstance(question.request, Form)
    return question.request


def _asked(arguments: object, *, gate: Gate | None = None, tool: str = "delete") -> Question[Any]:
    return gate_question(
        gate or Gate(),
        tool=tool,
        arguments=json.dumps(arguments, sort_keys=True),
        shown=cast("Mapping[str, Any]", arguments),
        can_be_stored=True,
    )


def test_gate_returns_the_same_function() -> None:
    # parity: T1
    def tool() -> None: ...

    assert elicit.gate(tool) is tool
    assert mark_of(tool) == Gate()
    assert elicit.gate(message="Sure?", timeout=timedelta(minutes=1))(tool) is tool
    assert mark_of(tool) == Gate(message="Sure?", timeout=timedelta(minutes=1))
    assert mark_of(delete) is None
    assert mark_of(None) is None


def test_gate_mark_is_found_through_wrappers() -> None:
    class Tools:
        @elicit.gate
        def method(self) -> None: ...

        def __call__(self) -> None: ...

    @plain
    @plain
    @elicit.gate
    def wrapped() -> None: ...

    later = plain(delete_later)
    elicit.gate(delete_later)
    called = elicit.gate(Tools())
    for function in (wrapped, later, partial(wrapped), Tools().method, called, called.__call__):
        assert mark_of(function) == Gate(), function


def delete_later() -> None: ...


class Box:
    def empty(self) -> str:
        return "emptied"


def test_gate_off_applies_only_to_the_marked_function() -> None:
    def tool() -> None: ...

    wrapper = elicit.gate(off=True)(plain(tool))
    assert mark_of(wrapper) == Gate(is_off=True)
    assert mark_of(plain(wrapper)) == Gate(is_off=True), (
        "a wrapper of the marked function has its mark"
    )
    assert mark_of(tool) is None, "the wrapped function does not get the mark"
    bound = Box().empty
    elicit.gate(off=True)(partial(bound))
    assert mark_of(bound) is None
    elicit.gate(wrapper)
    assert mark_of(wrapper) == Gate(), "`gate` overrides `gate(off=True)` in either order"


def test_gate_off_works_on_library_tool_and_static_method() -> None:
    from fastmcp.tools import Tool

    def tool() -> None: ...

    made: Any = Tool.from_function(tool)
    assert elicit.gate(off=True)(made) is made
    assert mark_of(tool) == Gate(is_off=True)

    class Tools:
        @elicit.gate(off=True)
        @staticmethod
        def apart() -> None: ...

    assert mark_of(Tools.apart) == Gate(is_off=True)


def test_gate_off_never_removes_the_gate_of_a_marked_function() -> None:
    def tool() -> None: ...

    elicit.gate(message="Sure?")(tool)

    @wraps(tool)
    def another() -> None: ...

    def of_another_name() -> None: ...

    for function in (tool, another, partial(tool)):
        with pytest.raises(InvalidQuestion, match="already marked with gate"):
            elicit.gate(off=True)(function)
        assert mark_of(function) == Gate(message="Sure?")
    later = wraps(of_another_name)(lambda: None)
    elicit.gate(off=True)(later)
    elicit.gate(of_another_name)
    assert mark_of(later) == Gate(), (
        "`gate` on the wrapped function overrides an earlier `off=True`"
    )
    assert elicit.gate(off=True)(elicit.gate(off=True)(delete_later_yet)) is delete_later_yet


def delete_later_yet() -> None: ...


def test_gate_off_on_bound_method_is_refused() -> None:
    from fastmcp.tools import Tool

    bound: list[Any] = [Box().empty, Tool.from_function(Box().empty)]
    for given in bound:
        with pytest.raises(InvalidQuestion, match=r"Box\.empty for every object"):
            elicit.gate(off=True)(given)
    assert mark_of(Box().empty) is None


def test_gate_mark_does_not_change_message_of_another_tool() -> None:
    def tool() -> None: ...

    elicit.gate(message="Delete?")(tool)

    @wraps(tool)
    def another() -> None: ...

    elicit.gate(message="Tidy up?")(another)
    assert mark_of(another) == Gate(message="Tidy up?")
    assert mark_of(tool) == Gate(message="Delete?")


def test_invalid_gate_arguments_are_refused() -> None:
    with pytest.raises(InvalidQuestion):
        elicit.gate(len)
    with pytest.raises(InvalidQuestion):
        elicit.gate("delete")  # type: ignore[call-overload]  # an author's slip
    with pytest.raises(InvalidQuestion):
        elicit.gate(message=" ")
    with pytest.raises(InvalidQuestion):
        elicit.gate(timeout=timedelta())


@pytest.mark.parametrize(
    ("policy", "mark", "is_destructive", "is_gated"),
    [
        (GatePolicy(), None, True, True),
        (GatePolicy(), None, False, False),
        (GatePolicy(), Gate(), False, True),
        (GatePolicy(), Gate(is_off=True), True, False),
        (GatePolicy(gates_destructive=False), None, True, False),
        (GatePolicy(gates_destructive=False), Gate(), True, True),
        (GatePolicy(patterns=("del*",)), None, False, True),
        (GatePolicy(patterns=("del*",)), Gate(is_off=True), True, True),
        (GatePolicy(patterns=("DEL*", "elete", "de?ete_all")), None, False, False),
    ],
)
def test_gate_policy_decides_which_tools_are_gated(
    policy: GatePolicy, mark: Gate | None, *, is_destructive: bool, is_gated: bool
) -> None:
    # parity: T1
    gate = policy.gate_of("delete", mark=mark, is_destructive=is_destructive)
    assert (gate is not None) is is_gated


def test_gate_asks_for_approval_and_decline_raises() -> None:
    # parity: T2
    question = _asked({"count": 5})
    request = _request(question)
    assert (question.message, request.kind) == ("Run delete?", "gate")
    assert request.arguments == {"count": 5}
    assert not request.schema.fields
    assert question.no is None, "a declined gate has no value to return: the call ends"
    assert issubclass(Declined, Exception)


def test_custom_message_also_names_the_tool() -> None:
    assert _asked({}, gate=Gate(message="Empty the bin?")).message == "Empty the bin? (delete)"
    assert _asked({}, gate=Gate(message="Let delete run?")).message == "Let delete run?"
    longest = "m" * MESSAGE_CHARACTERS_AT_MOST
    assert _asked({}, gate=Gate(message=longest), tool="t" * 200).message.endswith(f"({'t' * 200})")
    with pytest.raises(InvalidQuestion, match=f"1 to {len(longest)} characters"):
        elicit.gate(message=f"{longest}m")
    with pytest.raises(InvalidQuestion, match="at most 200"):
        _ = _asked({}, tool="t" * 201)


def test_different_arguments_make_a_different_question() -> None:
    digests = {_asked(arguments).digest for arguments in ({"a": 1}, {"a": "1"}, {"b": 1}, {})}
    assert len(digests) == 4
    assert _asked({"a": 1, "b": 2}).digest == _asked({"b": 2, "a": 1}).digest
    one, other = "x" * 9000 + "1", "x" * 9000 + "2"
    assert _asked({"a": one}).digest != _asked({"a": other}).digest
    assert digest_of_arguments("{}") != digest_of_arguments('{"a": 1}')


def test_approval_also_covers_shown_values() -> None:
    # finding: S8
    one, other = (
        gate_question(Gate(), tool="delete", arguments="{}", shown={"n": n}, can_be_stored=True)
        for n in (1, 2)
    )
    assert _request(one).covers != _request(other).covers, (
        "an approval does not cover a changed default value"
    )
