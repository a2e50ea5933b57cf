"""A link as code of an author's own shows it: in a block `asking`, or in a program over HTTP."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownLink:
    """A link to one question, for the person that it is about and for nobody else.

    With `needs_code` the page shows eight letters, and your own page asks its user for them: only
    there is known whom you asked. What they type goes to `confirm`.
    """

    url: str = field(repr=False)
    kind: str
    message: str
    elicitation_id: str
    expires_at: datetime
    needs_code: bool = False
    _wrong: Callable[[str], Awaitable[str | None]] = field(repr=False, compare=False)

    async def confirm(self, code: str) -> str | None:
        """Take the letters; what to tell whoever typed them, None if nothing more is to be typed.

        They were right then, or the question is over.
        """
        return await self._wrong(code) if self.needs_code else None


Show: TypeAlias = Callable[[ShownLink], Awaitable[object] | object]
