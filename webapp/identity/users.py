"""The users of the application that embeds this one, identified by the author's `who`.

Risks: `who` returns the wrong person. It is therefore called again for each request that needs the
user, with that request as its argument. An exception, and a result that is no user id, count as an
anonymous caller and are only logged. Ids are compared exactly. The same text is the id of a
different person in another application on the same store, at an issuer, or on this machine.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from starlette.requests import Request

from webapp.http.address import rooted
from webapp.importing import result_of

USER_ID_CHARACTERS = 256
ANSWERS_WITHIN = timedelta(seconds=5)
# Scope key of the request as it arrived, without the data that our own framework adds.
_AS_IT_CAME = "elicit.as_it_came"
Who: TypeAlias = Callable[[Request], Awaitable[str | None] | str | None]
_log = logging.getLogger(__name__)


def is_user_id(given: object) -> bool:
    """Return True if this may be a user id: 1 to 256 characters without lone surrogates."""
    if not isinstance(given, str) or not 0 < len(given) <= USER_ID_CHARACTERS:
        return False
    return not any("\ud800" <= character <= "\udfff" for character in given)


def must_be_sign_in_url(url: str) -> None:
    """Raise ValueError unless the address is a path of the same host or a web address."""
    is_path = url.startswith("/") and not url.startswith(("//", "/\\"))
    try:
        is_web = urlsplit(url).scheme in ("https", "http") and bool(urlsplit(url).hostname)
    except ValueError:
        is_web = False
    if not (is_path or is_web) or not url.isprintable():
        raise ValueError(
            f"sign_in_url={url!r} is not a valid address. Write, for example, "
            "https://example.com/login or /login."
        )


def note_request(scope: MutableMapping[str, Any]) -> None:
    """Store a copy of the request's scope as the author's own application passed it on."""
    scope[_AS_IT_CAME] = dict(rooted(scope))


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    """The users of one application.

    The application's name distinguishes them from the users of another application.

    Without `who`, no browser is identified. `sign_in_url` is where users sign in.
    """

    application: str
    who: Who | None = None
    sign_in_url: str | None = None
    answers_within: timedelta = field(default=ANSWERS_WITHIN)

    @property
    def label(self) -> str:
        return f"you, signed in at {self.application}"

    async def at(self, scope: Mapping[str, Any]) -> str | None:
        """Return the id of the user at this browser, or None if `who` returns no valid id."""
        if self.who is None:
            return None
        request = Request(dict(scope.get(_AS_IT_CAME, scope)))  # the request without its body
        try:
            async with asyncio.timeout(self.answers_within.total_seconds()):
                found = await result_of(self.who, request)
        except Exception as error:  # noqa: BLE001 - it is the author's code
            _log.error("who.failed", exc_info=error)
            return None
        if found is None or is_user_id(found):
            return found
        _log.error("who.unusable", extra={"type": type(found).__name__})
        return None
