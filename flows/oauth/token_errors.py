"""What a provider says when it refuses, in whichever of its ways it says so.

What could go wrong: a no that is read as a yes, or as a no for good when it is one for now. Some
refuse with HTTP 200, some inside an object, and only the word tells an end from a hitch.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import httpx

from flows.errors import Failed
from flows.oauth.provider import Provider
from flows.oauth.responses import ERROR_CODE, TokenReply, members_of, read_token_reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A no: the provider's word for it, if it is one that can be shown, and what it means."""

    status: int
    error: str | None = None
    meaning: str | None = None

    @property
    def is_passing(self) -> bool:
        """Whether it says nothing about the question, and may be gone the next time."""
        return self.status >= 500 or self.status == 429

    @property
    def shown(self) -> str:
        return f" ({self.error})" if self.error else f" (HTTP {self.status})"


def refusal_in(reply: httpx.Response, provider: Provider) -> Refusal | None:
    """The no in a reply; None if there is none in it."""
    says = members_of(reply, provider)
    error: Any = says.get("error")
    if isinstance(error, dict):  # Dropbox
        error = cast("dict[str, Any]", error).get(".tag")
    is_one = isinstance(error, str) and error != ""
    if not is_one and reply.status_code < 400 and says.get("ok") is not False:
        return None
    return Refusal(
        status=reply.status_code,
        error=error if is_one and ERROR_CODE.fullmatch(error) else None,
        meaning=meaning_of(says.get("error_description"), provider),
    )


def meaning_of(description: Any, provider: Provider) -> str | None:
    """The sentence that the declaration has for a code in the description."""
    if not isinstance(description, str):
        return None
    found = (words for code, words in provider.troubles.items() if code in description)
    return next(found, None)


def tokens_in(reply: httpx.Response, provider: Provider, *, now: datetime) -> TokenReply:
    """Raises Failed unless the reply holds a key that can be used."""
    refusal = refusal_in(reply, provider)
    if refusal is not None and refusal.meaning is not None:
        raise Failed(refusal.meaning)
    return read_token_reply(reply, provider, now=now)
