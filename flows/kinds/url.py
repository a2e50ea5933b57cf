"""The kind `url`: a visit to any address, which ends when its service says so.

What could go wrong: an address that is not what the tool's author wrote (a model's or an
attacker's text in it). Its origin must therefore be a literal of the call, and the page shows it.
"""

import re
import string
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import quote

import httpx

from flows.elicitation.flow import Redirect, RedirectContext
from flows.elicitation.states import Elicitation, Json
from flows.errors import InvalidQuestion
from flows.origin import origin_of
from flows.question import Link

UrlOrBuilder: TypeAlias = str | Callable[[Link], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A request to visit an address."""

    message: str
    url: UrlOrBuilder
    origins: tuple[str, ...]
    waits: bool = True

    @property
    def kind(self) -> str:
        return "url"

    def facts(self) -> Json:
        fixed = self.url if isinstance(self.url, str) else None
        return {
            "message": self.message,
            "origins": list(self.origins),
            "url": fixed,
            "waits": self.waits,
        }

    def address(self, link: Link) -> str:
        """The address for this link. Raises InvalidQuestion if it leaves the call's origins."""
        url = self.url if isinstance(self.url, str) else self.url(link)
        origin = origin_of(url)
        if origin not in self.origins:
            raise InvalidQuestion(
                f"The address leads to {origin}, which is not among origins={self.origins!r}."
            )
        # The origin as checked, the rest in letters that a header can carry.
        tail = re.match(r"[^/]+//[^/?#]*", url)
        return origin + quote(url[tail.end() if tail else 0 :], safe=string.printable)


class VisitFlow:
    """Nothing is asked of the service on the way: the address was made with the question."""

    def prepare(self, elicitation: Elicitation, trip: RedirectContext) -> Json:
        return None

    def begin(
        self, elicitation: Elicitation, trip: RedirectContext
    ) -> Generator[httpx.Request, httpx.Response, Redirect]:
        yield from ()
        assert elicitation.asked.url is not None
        return Redirect(url=elicitation.asked.url)
