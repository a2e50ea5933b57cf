"""User codes: one-time codes that a person copies from the page to the chat.

A code is stored with its elicitation. Risks: an attacker guesses codes, or a second browser uses
the link. Each wrong code is therefore counted in the store before the result is returned, and a
confirmed code admits one browser only (flows.elicitation.user_code).
"""

from enum import StrEnum

from msgspec.structs import replace

from flows.elicitation import user_code as bindings
from flows.elicitation.states import Elicitation, Status
from flows.elicitation.user_code import (
    CLOSED_WORDS,
    FRESH_WORDS,
    WRONG_WORDS,
    Code,
    UserCodeGenerator,
)
from flows.errors import NotPossible, TooManyAttempts
from webapp.elicitations.service import Elicitations


class TypedCode(StrEnum):
    """The result of a typed code. Each value is a sentence for the chat."""

    RIGHT = "The code is correct. The page continues now."
    WRONG = WRONG_WORDS
    FRESH = FRESH_WORDS
    CLOSED = CLOSED_WORDS


class UserCodes:
    def __init__(self, *, elicitations: Elicitations, codes: UserCodeGenerator) -> None:
        self._elicitations = elicitations
        self._codes = codes

    async def bind(self, id: str, *, browser: str) -> Elicitation:
        """Assign a code to a browser, and return the elicitation.

        Raises NotAllowed if another browser was confirmed, NotPossible if the question has ended.
        """

        def bind(current: Elicitation) -> Elicitation:
            _require_open(current)
            return replace(current, binding=bindings.bind(current.binding, browser=browser))

        return await self._elicitations.change(id, bind)

    def of(self, elicitation: Elicitation, code: Code) -> str:
        """Return the code for the page of this browser."""
        return self._codes.user_code(elicitation.id, code)

    async def typed(self, asked: Elicitation, typed: str) -> TypedCode:
        """Check a typed code and return the result. After too many wrong codes the question fails.

        Raises TooManyAttempts, or NotPossible if the question has ended.
        """
        now = self._elicitations.clock()
        result = TypedCode.CLOSED

        def confirm(current: Elicitation) -> Elicitation:
            nonlocal result
            _require_open(current)
            if current.binding is None:
                result = TypedCode.CLOSED
                return current
            tried = self._codes.confirm(asked.id, current.binding, typed=typed, now=now)
            if tried.confirmed_at is not None:
                result = TypedCode.RIGHT
            else:
                is_fresh = tried.number != current.binding.number
                result = TypedCode.FRESH if is_fresh else TypedCode.WRONG
            return replace(current, binding=tried)

        try:
            await self._elicitations.change(asked.id, confirm)
        except TooManyAttempts:
            why = "the typed code was wrong too often"
            await self._elicitations.end(asked, Status.FAILED, why=why)
            raise
        return result

    async def wrong(self, asked: Elicitation, typed: str) -> str | None:
        """Check a typed code. Return a sentence for the chat if the code can be typed again.

        Return None if the code was right, or if the question has ended.
        """
        try:
            result = await self.typed(asked, typed)
        except (NotPossible, TooManyAttempts):
            return None
        return None if result is TypedCode.RIGHT else result.value


def _require_open(current: Elicitation) -> None:
    if current.status.is_final:
        raise NotPossible(status=current.status, wanted="opened")
