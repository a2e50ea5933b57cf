"""Answers handed over: what a tool's needs brought before its body, until the body awaits them.

What could go wrong: an answer that is used twice. Each is given to the first await of an equal
question, once; the next one is a question of its own. `needed` only reads what was brought.
"""

from collections import defaultdict
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from flows.elicitation.states import Json
from flows.errors import InvalidQuestion
from flows.kinds.needs import NOT_NEEDED
from flows.question import Outcome, Question

T = TypeVar("T")
Fact: TypeAlias = tuple[str, str]  # kind and digest: what tells one question from another


class Prefetched:
    """Of one leg of a call: each leg asks what is needed anew, and finds it answered."""

    def __init__(self) -> None:
        self._outcomes: defaultdict[tuple[Fact, str | None], list[Outcome[Json]]] = defaultdict(
            list
        )
        self._brought: dict[tuple[Fact, str | None], Outcome[Json]] = {}

    def put(self, fact: Fact, outcome: Outcome[Json], *, key: str | None) -> None:
        """`outcome` has what `Question.answer` takes; `key` is the question's own."""
        self._outcomes[fact, key].append(outcome)
        self._brought[fact, key] = outcome

    def see(self, fact: Fact, question: Question[T]) -> T:
        """The latest answer, whoever awaited it already. Raises InvalidQuestion."""
        outcome = self._brought.get((fact, question.key))
        if outcome is None:
            raise InvalidQuestion(NOT_NEEDED)
        return question.answer(outcome.content)

    def take(self, fact: Fact, question: Question[T]) -> Outcome[T] | None:
        """The answer for the first that awaits it."""
        outcomes = self._outcomes.get((fact, question.key))
        if not outcomes:
            return None
        outcome: Outcome[Any] = outcomes.pop(0)
        return replace(outcome, content=question.answer(outcome.content))
