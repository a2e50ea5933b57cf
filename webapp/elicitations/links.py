"""Links: the URLs and tokens that this server sends out."""

from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from flows.crypto.tokens import Claims, Purpose, Tokens
from flows.elicitation.states import Elicitation
from flows.question import Link
from webapp.records.ids import owner_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

# A link is valid for this long after its elicitation expires, so that its page shows the outcome.
LINK_OUTLIVES = timedelta(days=1)
_PAGE_LASTS = timedelta(days=1)


async def _always_owns_url() -> None:
    """Do nothing. This is the default of `prove`, for a process that always owns the public URL."""


class Links:
    """The URLs under one public URL.

    `prove` raises if this process does not own the public URL now. Await it before sending a link.
    """

    def __init__(self, *, tokens: Tokens, public_url: str) -> None:
        self.prove: Callable[[], Awaitable[None]] = _always_owns_url
        self._tokens = tokens
        self.read = tokens.read
        self.state = tokens.mint  # the OAuth state that the provider sends back with the browser
        self.public_url = public_url.rstrip("/")

    def of(self, elicitation: Elicitation, *, now: datetime) -> str:
        """Return the link to the elicitation's page on this server."""
        expires_at = elicitation.expires_at + LINK_OUTLIVES
        claims = Claims(purpose=Purpose.LINK, id=elicitation.id, expires_at=expires_at)
        return f"{self.public_url}/e/{self._tokens.mint(claims, now=now)}"

    def for_author(self, *, elicitation_id: str, expires_at: datetime, now: datetime) -> Link:
        """Return the `Link` with which the author's own service completes this elicitation."""

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
        """Return a token for the author's own service. No route of this server accepts it."""
        claims = Claims(purpose=Purpose.AUTHOR, id=elicitation_id, expires_at=expires_at)
        return self._tokens.mint(claims, now=now)

    def run(self, *, run_id: str, rest: str, expires_at: datetime, now: datetime) -> str:
        """Return the token that carries a run from one request of a call to the next."""
        claims = Claims(purpose=Purpose.RUN, id=run_id, expires_at=expires_at, rest=rest)
        return self._tokens.mint(claims, now=now)

    def page(self, *, last: str, rest: str, now: datetime) -> str:
        """Return the position where a page of a list ended, as a token only this server can read.

        The token is sealed because the last row may belong to another program, and the row's id
        contains its owner's tag.
        """
        claims = Claims(purpose=Purpose.PAGE, id=last, expires_at=now + _PAGE_LASTS, rest=rest)
        return self._tokens.mint(claims, now=now)
