"""Users: people as the application around this one knows them, by the `who` of its author.

What could go wrong: a `who` that takes anybody for somebody. It is asked at each gate again, about
the very request; what it raises, and what is no user id, is nobody, and told to the log alone. Ids
are compared whole and as they are: to two applications on one store, to an issuer and to this
machine the same text is another person.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import anyio.to_thread
from starlette.requests import Request

from webapp.http.root_path import rooted

USER_ID_CHARACTERS = 256
ANSWERS_WITHIN = timedelta(seconds=5)
# The request as it came to us: a framework of ours writes into it what its own routes need.
_AS_IT_CAME = "elicit.as_it_came"
Who: TypeAlias = Callable[[Request], Awaitable[str | None] | str | None]
_log = logging.getLogger(__name__)


def is_user_id(given: object) -> bool:
    """Whether it may name a user: a text of 1 to 256 characters, without half a letter."""
    if not isinstance(given, str) or not 0 < len(given) <= USER_ID_CHARACTERS:
        return False
    return not any("\ud800" <= letter <= "\udfff" for letter in given)


def must_be_sign_in_url(url: str) -> None:
    """Raises ValueError for what is neither a path of the same host nor a web address."""
    is_path = url.startswith("/") and not url.startswith(("//", "/\\"))
    try:
        is_web = urlsplit(url).scheme in ("https", "http") and bool(urlsplit(url).hostname)
    except ValueError:
        is_web = False
    if not (is_path or is_web) or not url.isprintable():
        raise ValueError(
            f"sign_in_url={url!r} is no address: write https://example.com/login, or /login."
        )


def note_request(scope: MutableMapping[str, Any]) -> None:
    """Keep it as the author's own application has handed it on."""
    scope[_AS_IT_CAME] = dict(rooted(scope))


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    """Those of one application, whose name tells them from another one's.

    Without `who` nobody is known by their browser. `sign_in_url` is where they sign in.
    """

    application: str
    who: Who | None = None
    sign_in_url: str | None = None
    answers_within: timedelta = field(default=ANSWERS_WITHIN)

    @property
    def label(self) -> str:
        return f"you, signed in at {self.application}"

    async def at(self, scope: Mapping[str, Any]) -> str | None:
        """The id of the user at this browser; None for nobody, and for all that is no id."""
        if self.who is None:
            return None
        request = Request(dict(scope.get(_AS_IT_CAME, scope)))  # without its body, which is ours
        try:
            async with asyncio.timeout(self.answers_within.total_seconds()):
                found = await _answer(self.who, request)
        except Exception as error:  # noqa: BLE001 - it is the author's code
            _log.error("who.failed", exc_info=error)
            return None
        if found is None or is_user_id(found):
            return found
        _log.error("who.unusable", extra={"type": type(found).__name__})
        return None


async def _answer(who: Who, request: Request) -> str | None:
    """A function that is not async may read a database: it has a thread."""
    if inspect.iscoroutinefunction(who) or inspect.iscoroutinefunction(type(who).__call__):
        found = who(request)
    else:
        found = await anyio.to_thread.run_sync(who, request, abandon_on_cancel=True)
    return await found if inspect.isawaitable(found) else found
