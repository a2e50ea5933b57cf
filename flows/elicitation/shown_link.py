"""A link shown by the author's own code: in an `asking` block or in a program over HTTP."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownLink:
    """A link to one question, meant only for the person who is asked.

    With `needs_code` the link's page shows an eight-character code. Your own page must ask its user
    for the code, because only your page knows whom you asked. Pass the typed code to `confirm`.
    """

    url: str = field(repr=False)
    kind: str
    message: str
    elicitation_id: str
    expires_at: datetime
    needs_code: bool = False
    _wrong: Callable[[str], Awaitable[str | None]] = field(repr=False, compare=False)

    async def confirm(self, code: str) -> str | None:
        """Check a typed code. Return the text to show, or None if no more code is needed.

        None means that the code was right or that the question has ended.
        """
        return await self._wrong(code) if self.needs_code else None


Show: TypeAlias = Callable[[ShownLink], Awaitable[object] | object]
