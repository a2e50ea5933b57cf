"""Prefetched answers, collected before a tool's body runs until the body awaits them.

Risks: an answer is used twice. The first await of an equal question gets the answer, and the next
await asks a question of its own. `needed` only reads answers and can read each one repeatedly.
"""

from collections import defaultdict
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from flows.elicitation.states import Json
from flows.errors import InvalidQuestion
from flows.kinds.needs import NOT_NEEDED
from flows.question import Outcome, Question

T = TypeVar("T")
Fact: TypeAlias = tuple[str, str]  # kind and digest, which distinguish questions


class Prefetched:
    """The prefetched answers of one request.

    They are not stored: each request of a call asks for the tool's needs again before its body.
    """

    def __init__(self) -> None:
        self._outcomes: defaultdict[tuple[Fact, str | None], list[Outcome[Json]]] = defaultdict(
            list
        )
        self._brought: dict[tuple[Fact, str | None], Outcome[Json]] = {}

    def put(self, fact: Fact, outcome: Outcome[Json], *, key: str | None) -> None:
        """Add an answer.

        `outcome` has the input of `Question.answer`; `key` is the question's key.
        """
        self._outcomes[fact, key].append(outcome)
        self._brought[fact, key] = outcome

    def see(self, fact: Fact, question: Question[T]) -> T:
        """Return the latest answer, even if it was awaited before.

        Raises InvalidQuestion if no such question was asked before the body.
        """
        outcome = self._brought.get((fact, question.key))
        if outcome is None:
            raise InvalidQuestion(NOT_NEEDED)
        return question.answer(outcome.content)

    def pop(self, fact: Fact, question: Question[T]) -> Outcome[T] | None:
        """Return the answer for the first await of this question, or None if there is none left."""
        outcomes = self._outcomes.get((fact, question.key))
        if not outcomes:
            return None
        outcome: Outcome[Any] = outcomes.pop(0)
        return replace(outcome, content=question.answer(outcome.content))
