"""Questions that are asked together: the results of awaiting them, with a fake asker."""

from collections.abc import Sequence
from typing import Any, assert_type

import pytest

from flows import elicit
from flows.elicitation.states import Status
from flows.errors import Declined, Expired, InvalidQuestion, NoAsker
from flows.kinds.together import Together
from flows.question import Outcome, Question, asking
from tests.support.askers import FixedAsker

NAME = elicit.form("Who are you?")
SURE = elicit.confirm("Sure?")
VISIT = elicit.url("Go there", "https://shop.example/")


class Asker(FixedAsker):
    """An asker that returns the given outcomes, one for each question."""

    def __init__(self, *outcomes: Outcome[Any]) -> None:
        super().__init__(outcomes[0])
        self.outcomes = outcomes
        self.stops: list[bool] = []

    async def ask_together(
        self, questions: Sequence[Question[Any]], *, stops_at_no: bool
    ) -> tuple[Outcome[Any], ...]:
        self.asked.extend(questions)
        self.stops.append(stops_at_no)
        return self.outcomes


def yes(content: object) -> Outcome[Any]:
    return Outcome(status=Status.ACCEPTED, content=content)


def no(status: Status = Status.DECLINED) -> Outcome[Any]:
    kind = Declined if status is Status.DECLINED else Expired
    return Outcome(status=status, error=kind("No.", elicitation_id="e"))


async def test_awaiting_together_returns_answers_in_order() -> None:
    asker = Asker(yes("Ada"), yes(True))
    with asking(asker):
        name, is_sure = await elicit.together(NAME, SURE)
    assert_type(name, str)
    assert_type(is_sure, bool)
    assert (name, is_sure) == ("Ada", True)
    assert asker.asked == [NAME, SURE]
    assert asker.stops == [True]


async def test_together_asks_nothing_before_the_await() -> None:
    asked = elicit.together(NAME, SURE, VISIT)
    with pytest.raises(NoAsker):
        await asked
    with pytest.raises(NoAsker):
        await asked.outcomes()
    with pytest.raises(TypeError, match="await"):
        bool(asked)


async def test_first_declined_question_in_order_raises() -> None:
    first, second = no(), no(Status.EXPIRED)
    with asking(Asker(yes("Ada"), first, second)), pytest.raises(Declined) as raised:
        await elicit.together(NAME, VISIT, VISIT)
    assert raised.value is first.error


async def test_declined_confirm_returns_false_instead_of_raising() -> None:
    with asking(Asker(yes("Ada"), no())):
        assert await elicit.together(NAME, SURE) == ("Ada", False)


async def test_outcomes_returns_every_outcome_without_raising() -> None:
    reported = (yes("Ada"), no(), no(Status.EXPIRED))
    asker = Asker(*reported)
    with asking(asker):
        assert await elicit.together(NAME, SURE, VISIT).outcomes() == reported
    assert asker.stops == [False]


async def test_any_number_of_questions_can_be_asked_together() -> None:
    for count in (1, 5):
        with asking(Asker(*[yes("Ada")] * count)):
            assert await elicit.together(*[NAME] * count) == ("Ada",) * count


def test_together_objects_with_equal_questions_are_equal() -> None:
    assert elicit.together(NAME, SURE) == elicit.together(NAME, SURE)
    other: object = elicit.together(SURE, NAME)
    assert elicit.together(NAME, SURE) != other
    assert isinstance(elicit.together(NAME, SURE), Together)


@pytest.mark.parametrize("wrong", ["a text", None, elicit.together(NAME, SURE)])
def test_together_refuses_non_question_values(wrong: Any) -> None:
    asker = Asker(yes("Ada"))
    with asking(asker), pytest.raises(InvalidQuestion) as refused:
        _ = elicit.together(NAME, wrong)
    assert asker.error is refused.value


def test_together_without_questions_is_refused() -> None:
    with pytest.raises(InvalidQuestion):
        _ = elicit.together()
