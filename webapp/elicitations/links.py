"""Links: every address that leaves the process with a token in it."""

from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from flows.crypto.tokens import Claims, Purpose, Tokens
from flows.elicitation.states import Elicitation
from flows.question import Link
from webapp.records.ids import owner_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

# The pages of a link outlive the elicitation, to say what became of it.
LINK_OUTLIVES = timedelta(days=1)
_PAGE_LASTS = timedelta(days=1)


async def _is_always_ours() -> None:
    """This process has the port itself."""


class Links:
    """Addresses under one public URL.

    `prove` raises where that is not ours at the moment; it is awaited before a link leaves.
    """

    def __init__(self, *, tokens: Tokens, public_url: str) -> None:
        self.prove: Callable[[], Awaitable[None]] = _is_always_ours
        self._tokens = tokens
        self.public_url = public_url.rstrip("/")

    def of(self, elicitation: Elicitation, *, now: datetime) -> str:
        """Where the person goes first."""
        return f"{self.public_url}/e/{self._mint(Purpose.LINK, elicitation, now=now)}"

    def for_author(self, *, elicitation_id: str, expires_at: datetime, now: datetime) -> Link:
        """What the author's own service gets, to come back."""

        def mint(purpose: Purpose) -> str:
            claims = Claims(
                purpose=purpose, id=elicitation_id, expires_at=expires_at + LINK_OUTLIVES
            )
            return self._tokens.mint(claims, now=now)

        return Link(
            id=elicitation_id,
            owner=owner_of(elicitation_id),
            public_url=self.public_url,
            return_token=partial(mint, Purpose.RETURN),
            callback_token=partial(mint, Purpose.CALLBACK),
        )

    def author_token(self, elicitation_id: str, *, expires_at: datetime, now: datetime) -> str:
        """What an author sends through a service of his own: no route of ours takes it."""
        claims = Claims(purpose=Purpose.AUTHOR, id=elicitation_id, expires_at=expires_at)
        return self._tokens.mint(claims, now=now)

    def read(self, text: str, *, purpose: Purpose, now: datetime) -> Claims:
        """Raises InvalidToken."""
        return self._tokens.read(text, purpose=purpose, now=now)

    def run(self, *, run_id: str, rest: str, expires_at: datetime, now: datetime) -> str:
        """The token that carries a run from one leg to the next."""
        claims = Claims(purpose=Purpose.RUN, id=run_id, expires_at=expires_at, rest=rest)
        return self._tokens.mint(claims, now=now)

    def state(self, claims: Claims, *, now: datetime) -> str:
        """What a provider sends back with the browser."""
        return self._tokens.mint(claims, now=now)

    def page(self, *, last: str, rest: str, now: datetime) -> str:
        """Return where a page of a list ended; only this server can read it.

        The last row that was read may be another program's, and its id names its owner.
        """
        claims = Claims(purpose=Purpose.PAGE, id=last, expires_at=now + _PAGE_LASTS, rest=rest)
        return self._tokens.mint(claims, now=now)

    def _mint(self, purpose: Purpose, elicitation: Elicitation, *, now: datetime) -> str:
        expires_at = elicitation.expires_at + LINK_OUTLIVES
        return self._tokens.mint(
            Claims(purpose=purpose, id=elicitation.id, expires_at=expires_at), now=now
        )
