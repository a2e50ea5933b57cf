"""`elicit.needs`: where the decorator stores its questions, and which arguments it refuses."""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import pytest

from flows import Money, elicit
from flows.errors import InvalidQuestion
from flows.kinds.gate import needs_of
from flows.providers import github
from flows.question import asking

TERMS = elicit.url("Read the terms.", "https://example.com/terms")
SURE = elicit.confirm("Are you sure?")


def questions_of(tool: object) -> list[str]:
    return [question.message for need in needs_of(tool) for question in need.questions]


def passing_on(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def passed(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return passed


def test_needs_returns_the_same_function() -> None:
    def tool() -> str:
        return "done"

    assert elicit.needs(TERMS)(tool) is tool
    assert tool() == "done"
    assert questions_of(tool) == ["Read the terms."]


def test_question_passed_to_needs_is_not_reported_as_unasked() -> None:
    asker: Any = None
    with asking(asker, is_tool=None) as unasked:
        question = elicit.confirm("Sure?")
        assert unasked
        elicit.needs(question)
        assert not unasked


def test_needs_decorators_are_asked_from_top_to_bottom() -> None:
    @elicit.needs(TERMS)
    @elicit.needs(SURE, elicit.form("Who are you?"))
    def tool() -> None: ...

    assert questions_of(tool) == ["Read the terms.", "Are you sure?", "Who are you?"]


def test_needs_mark_is_found_above_and_below_other_decorators() -> None:
    def tool() -> None: ...

    served = tool
    above = elicit.needs(TERMS)(passing_on(served))
    assert questions_of(above) == questions_of(served) == ["Read the terms."]
    again = elicit.needs(SURE)(passing_on(above))
    assert questions_of(again) == questions_of(served) == ["Are you sure?", "Read the terms."]
    assert questions_of(passing_on(again)) == ["Are you sure?", "Read the terms."]


def test_needs_mark_is_found_on_method_and_callable_object() -> None:
    class Shop:
        @elicit.needs(TERMS)
        def sell(self) -> None: ...

        def __call__(self) -> None: ...

    shop = Shop()
    assert questions_of(shop.sell) == ["Read the terms."]
    assert elicit.needs(SURE)(shop) is shop
    assert questions_of(shop) == questions_of(shop.__call__) == ["Are you sure?"]
    assert questions_of(Shop()) == []


def test_needs_mark_on_partial_does_not_reach_the_wrapped_function() -> None:
    def tool(count: int) -> None: ...

    one = elicit.needs(TERMS)(partial(tool, 1))
    assert questions_of(one) == ["Read the terms."]
    assert questions_of(tool) == []
    assert questions_of(partial(elicit.needs(SURE)(tool), 2)) == ["Are you sure?"]


def test_needs_mark_reaches_function_of_library_tool() -> None:
    class Served:
        __slots__ = ("fn",)

        def __init__(self, fn: Callable[..., Any]) -> None:
            self.fn = fn

        def __call__(self) -> None: ...

    def tool() -> None: ...

    elicit.needs(TERMS)(Served(tool))
    assert questions_of(tool) == ["Read the terms."]


@pytest.mark.parametrize("questions", [(), ("github",), (TERMS, print)])
def test_needs_refuses_non_question_values(questions: Any) -> None:
    with pytest.raises(InvalidQuestion, match="needs"):
        elicit.needs(*questions)


@pytest.mark.parametrize("tool", [3, len, "tool", None, Exception("no function")])
def test_needs_refuses_objects_other_than_functions_of_author(tool: Any) -> None:
    with pytest.raises(InvalidQuestion, match="a decorator for a tool's function"):
        elicit.needs(TERMS)(tool)


def test_empty_decline_message_is_refused() -> None:
    with pytest.raises(InvalidQuestion, match="decline_message"):
        elicit.needs(TERMS, decline_message=" ")


@pytest.mark.parametrize(
    "question",
    [TERMS, SURE, elicit.payment(Money("9.00", "EUR"), "Tea"), elicit.secret("Your door")],
)
def test_hide_is_refused_for_a_question_that_is_asked_each_time(question: Any) -> None:
    with pytest.raises(InvalidQuestion, match="forever"):
        elicit.needs(question, hide=True)


@pytest.mark.parametrize(
    "question",
    [
        elicit.oauth(github),
        elicit.payment(Money("9.00", "EUR"), "Tea", once=True),
        elicit.secret("Your door", name="door"),
    ],
)
def test_question_with_stored_answer_can_hide_a_tool(question: Any) -> None:
    def tool() -> None: ...

    elicit.needs(question, hide=True)(tool)
    (need,) = needs_of(tool)
    assert need.hides
