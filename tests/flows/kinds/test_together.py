"""Questions that are asked together: the results of awaiting them, with a fake asker."""

from collections.abc import Sequence
from typing import Any, assert_type

import pytest

from flows import elicit
from flows.elicitation.states import Status
from flows.errors import Declined, Expired, InvalidQuestion, NoAsker
from flows.kinds.together import Together
from flows.question import Outcome, Question, asking
from tests.support.askers import Told

NAME = elicit.form("Who are you?")
SURE = elicit.confirm("Sure?")
VISIT = elicit.url("Go there", "https://shop.example/")


class Asker(Told):
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


async def test_awaiting_them_gives_a_tuple_in_their_order() -> None:
    asker = Asker(yes("Ada"), yes(True))
    with asking(asker):
        name, is_sure = await elicit.together(NAME, SURE)
    assert_type(name, str)
    assert_type(is_sure, bool)
    assert (name, is_sure) == ("Ada", True)
    assert asker.asked == [NAME, SURE]
    assert asker.stops == [True]


async def test_nothing_is_asked_before_the_await() -> None:
    asked = elicit.together(NAME, SURE, VISIT)
    with pytest.raises(NoAsker):
        await asked
    with pytest.raises(NoAsker):
        await asked.outcomes()
    with pytest.raises(TypeError, match="await"):
        bool(asked)


async def test_the_first_no_in_their_order_is_raised() -> None:
    first, second = no(), no(Status.EXPIRED)
    with asking(Asker(yes("Ada"), first, second)), pytest.raises(Declined) as raised:
        await elicit.together(NAME, VISIT, VISIT)
    assert raised.value is first.error


async def test_a_no_that_is_an_answer_is_not_raised() -> None:
    with asking(Asker(yes("Ada"), no())):
        assert await elicit.together(NAME, SURE) == ("Ada", False)


async def test_the_outcomes_are_all_there_and_none_raises() -> None:
    told = (yes("Ada"), no(), no(Status.EXPIRED))
    asker = Asker(*told)
    with asking(asker):
        assert await elicit.together(NAME, SURE, VISIT).outcomes() == told
    assert asker.stops == [False]


async def test_any_number_can_be_asked() -> None:
    for count in (1, 5):
        with asking(Asker(*[yes("Ada")] * count)):
            assert await elicit.together(*[NAME] * count) == ("Ada",) * count


def test_two_are_the_same_if_they_ask_the_same() -> None:
    assert elicit.together(NAME, SURE) == elicit.together(NAME, SURE)
    other: object = elicit.together(SURE, NAME)
    assert elicit.together(NAME, SURE) != other
    assert isinstance(elicit.together(NAME, SURE), Together)


@pytest.mark.parametrize("wrong", ["a text", None, elicit.together(NAME, SURE)])
def test_what_is_no_question_is_refused_where_it_is_written(wrong: Any) -> None:
    asker = Asker(yes("Ada"))
    with asking(asker), pytest.raises(InvalidQuestion) as refused:
        _ = elicit.together(NAME, wrong)
    assert asker.error is refused.value


def test_nothing_at_all_is_refused() -> None:
    with pytest.raises(InvalidQuestion):
        _ = elicit.together()
