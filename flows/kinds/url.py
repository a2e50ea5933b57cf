"""The kind `url`: a visit to any address, which ends when its service says so.

What could go wrong: an address that is not what the tool's author wrote (a model's or an
attacker's text in it). Its origin must therefore be a literal of the call, and the page shows it.
"""

import re
import string
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias, cast
from urllib.parse import quote

import httpx

from flows.elicitation.flow import Redirect, RedirectContext
from flows.elicitation.states import Elicitation, Json
from flows.errors import InvalidQuestion
from flows.origin import is_origin, origin_of
from flows.question import DEFAULT_TIMEOUT, Link, Question, must_be_listed, telling

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


def url(
    message: str,
    url: UrlOrBuilder,
    *,
    origins: Sequence[str] = (),
    wait_for_completion: bool = True,
    elicitation_id: str | None = None,
    key: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[Mapping[str, Json]]:
    """Ask the person to visit an address, and wait until its service says that it is done.

    `url` is text, or a function of the link; a function needs `origins`, the places it may lead
    to, as literals. It is called when the question stands, which may be completed from then on;
    after a crash it is called again. The answer is the object that the completion carried. With
    `wait_for_completion=False` the answer is there as soon as the person agrees to go.
    With `key` it is the same question in every call of the tool, whatever its arguments; `timeout`
    is how long it stays open.
    Raises InvalidQuestion for an address that is not https (http on loopback).
    """
    with telling():
        must_be_listed("origins", origins)
        if not isinstance(url, str) and not origins:
            raise InvalidQuestion("A function as url needs origins=, the places it may lead to.")
        literal = (origin_of(url), *origins) if isinstance(url, str) else tuple(origins)
        for origin in literal:
            if not is_origin(origin):
                raise InvalidQuestion(
                    f"{origin!r} is no origin; write scheme://host, without a path."
                )
        return Question(
            message=message,
            request=Visit(
                message=message,
                url=url,
                origins=tuple(dict.fromkeys(literal)),
                waits=wait_for_completion,
            ),
            answer=_mapping,
            key=key,
            elicitation_id=elicitation_id,
            timeout=timeout,
        )


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


def _mapping(content: Json) -> Mapping[str, Json]:
    return cast("Mapping[str, Json]", content if isinstance(content, Mapping) else {})
