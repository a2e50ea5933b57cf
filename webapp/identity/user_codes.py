"""Letters: the code from the page to the chat, stored with the elicitation that it is about.

What could go wrong: guessing, and two browsers. So each wrong try is written before anybody is
told, and letters that came back are for one browser only (flows.elicitation.user_code).
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
    """What came of the letters that the asker typed; each is a sentence for the chat."""

    RIGHT = "These are the letters: the page goes on now."
    WRONG = WRONG_WORDS
    FRESH = FRESH_WORDS
    CLOSED = CLOSED_WORDS


class UserCodes:
    def __init__(self, *, elicitations: Elicitations, codes: UserCodeGenerator) -> None:
        self._elicitations = elicitations
        self._codes = codes

    async def bind(self, id: str, *, browser: str) -> Elicitation:
        """A browser wants to be shown letters.

        Raises NotAllowed where another one was confirmed, NotPossible at its end.
        """

        def bind(current: Elicitation) -> Elicitation:
            _require_open(current)
            return replace(current, binding=bindings.bind(current.binding, browser=browser))

        return await self._elicitations.change(id, bind)

    def of(self, elicitation: Elicitation, code: Code) -> str:
        """The letters for the page of the code's browser."""
        return self._codes.user_code(elicitation.id, code)

    async def confirm(self, id: str, typed: str) -> TypedCode:
        """The asker has typed this. Raises TooManyAttempts, NotPossible once it is over."""
        now = self._elicitations.clock()
        told = TypedCode.CLOSED

        def confirm(current: Elicitation) -> Elicitation:
            nonlocal told
            _require_open(current)
            if current.binding is None:
                told = TypedCode.CLOSED
                return current
            tried = self._codes.confirm(id, current.binding, typed=typed, now=now)
            if tried.confirmed_at is not None:
                told = TypedCode.RIGHT
            else:
                is_fresh = tried.number != current.binding.number
                told = TypedCode.FRESH if is_fresh else TypedCode.WRONG
            return replace(current, binding=tried)

        await self._elicitations.change(id, confirm)
        return told

    async def typed(self, asked: Elicitation, typed: str) -> TypedCode:
        """What the letters come to; wrong too often ends what they are for.

        Raises NotPossible, TooManyAttempts.
        """
        try:
            return await self.confirm(asked.id, typed)
        except TooManyAttempts:
            why = "the letters were wrong too often"
            await self._elicitations.end(asked, Status.FAILED, why=why)
            raise

    async def wrong(self, asked: Elicitation, typed: str) -> str | None:
        """What to say to whoever typed; None if there is nothing more to type.

        The letters were right then, or what they are for is over.
        """
        try:
            told = await self.typed(asked, typed)
        except (NotPossible, TooManyAttempts):
            return None
        return None if told is TypedCode.RIGHT else told.value


def _require_open(current: Elicitation) -> None:
    if current.status.is_final:
        raise NotPossible(status=current.status, wanted="opened")
