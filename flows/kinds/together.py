"""Several questions at once: the person sees all of them, and answers each."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, cast, overload

from flows.errors import InvalidQuestion
from flows.question import Outcome, Question, current_asker, reporting_errors, verb

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Together(Generic[T_co]):
    """Several questions that have not been asked yet. Await it for a tuple of their answers."""

    questions: tuple[Question[Any], ...]

    def __await__(self) -> Generator[Any, Any, T_co]:
        outcomes = yield from self._asked(stops_at_no=True).__await__()
        return cast("T_co", tuple(map(_answer, self.questions, outcomes)))

    async def outcomes(self) -> tuple[Outcome[Any], ...]:
        """Ask the questions and return all outcomes. A negative outcome does not raise."""
        return await self._asked(stops_at_no=False)

    async def _asked(self, *, stops_at_no: bool) -> tuple[Outcome[Any], ...]:
        self.discard()
        with reporting_errors():
            return await current_asker().ask_together(self.questions, stops_at_no=stops_at_no)

    def discard(self) -> None:
        """Mark the questions as not needed. A call fails if it never asks a question it creates."""
        for question in self.questions:
            question.discard()

    def __bool__(self) -> NoReturn:
        """Raise NotAwaited: the questions were used as if they were the answers."""
        bool(self.questions[0])
        raise AssertionError  # not reached: `bool` of a question raises NotAwaited

    if not TYPE_CHECKING:  # hidden from type checkers, so that they report a missing await

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):  # Python's own protocols probe for such names
                raise AttributeError(name)
            bool(self)

        def __getitem__(self, *_: object) -> NoReturn:
            bool(self)

        __iter__ = __len__ = __bool__
        __add__ = __radd__ = __lt__ = __gt__ = __contains__ = __getitem__
        __enter__ = __exit__ = __aenter__ = __aexit__ = __aiter__ = __getitem__


@overload
def together(first: Question[A], second: Question[B], /) -> Together[tuple[A, B]]: ...
@overload
def together(
    first: Question[A], second: Question[B], third: Question[C], /
) -> Together[tuple[A, B, C]]: ...
@overload
def together(
    first: Question[A], second: Question[B], third: Question[C], fourth: Question[D], /
) -> Together[tuple[A, B, C, D]]: ...
@overload
def together(*questions: Question[Any]) -> Together[tuple[Any, ...]]: ...
@verb
def together(*questions: Question[Any]) -> Together[Any]:
    """Ask several questions at once: they are shown together and answered separately.

    Args:
        *questions: The questions, one by one, in the order of the answers.

    Returns:
        The questions. Awaiting them returns the answers in this order, or raises the first negative
        outcome. The other questions then stay open until they expire. `outcomes()` waits for all of
        them.

    Raises:
        InvalidQuestion: An argument is not a question, or there is none. In a tool, the error is
            InvalidUse and names the line.
    """
    if not questions:
        raise InvalidQuestion(
            "together needs at least one question. Pass questions one by one: together(*questions)."
        )
    for question in questions:
        if not isinstance(cast("object", question), Question):
            raise InvalidQuestion(
                f"together accepts only questions, not a {type(question).__name__}. Pass "
                "questions one by one: together(*questions)."
            )
    return Together(questions=questions)


def _answer(question: Question[Any], outcome: Outcome[Any]) -> Any:
    if outcome.error is None:
        return outcome.content
    if question.no is None:
        raise outcome.error
    return question.no(outcome.error)
