"""The kind `url`: a visit to any address, which ends when its service says so.

What could go wrong: an address that is not what the tool's author wrote (a model's or an
attacker's text in it). Its origin must therefore be a literal of the call, and the page shows it.
"""

import ipaddress
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import urlsplit

import httpx
import idna

from flows.elicitation import Elicitation, Json
from flows.errors import InvalidQuestion
from flows.flow import Arrival, Departure
from flows.question import Link

UrlOrBuilder: TypeAlias = str | Callable[[Link], str]
URL_AT_MOST = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A request to visit an address."""

    message: str
    url: UrlOrBuilder = field(compare=False)
    origins: tuple[str, ...]
    waits: bool = True
    elicitation_id: str | None = None

    @property
    def kind(self) -> str:
        return "url"

    def facts(self) -> Json:
        fixed = self.url if isinstance(self.url, str) else None
        return {"message": self.message, "origins": list(self.origins), "url": fixed}

    def address(self, link: Link) -> str:
        """The address for this link. Raises InvalidQuestion if it leaves the call's origins."""
        url = self.url if isinstance(self.url, str) else self.url(link)
        origin = origin_of(url)
        if origin not in self.origins:
            raise InvalidQuestion(
                f"The address leads to {origin}, which is not among origins={self.origins!r}."
            )
        return url


class VisitFlow:
    """Nothing is asked of the service on the way: the address was made with the question."""

    def begin(
        self, elicitation: Elicitation
    ) -> Generator[httpx.Request, httpx.Response, Departure]:
        yield from ()
        assert elicitation.asked.url is not None
        return Departure(url=elicitation.asked.url)

    def finish(
        self, elicitation: Elicitation, arrival: Arrival
    ) -> Generator[httpx.Request, httpx.Response, Json]:
        yield from ()
        return {}


def origin_of(url: str) -> str:
    """Scheme, host and port of an address fit for a person (RFC 6454).

    Raises InvalidQuestion unless it is https (http on loopback), without user information,
    control characters or white space, and 8192 characters at most.
    """
    if len(url) > URL_AT_MOST or any(c <= " " or c in "\\\x7f" for c in url):
        raise InvalidQuestion("The address is too long, or has white space or a backslash in it.")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise InvalidQuestion("The address cannot be read as a URL.") from None
    if not host or parts.username is not None or parts.password is not None:
        raise InvalidQuestion(
            "The address needs a host and must not carry a user name or password."
        )
    try:
        # As browsers do it (UTS 46), so that the origin shown is the one that is gone to.
        host = host.lower() if host.isascii() else idna.encode(host, uts46=True).decode()
    except UnicodeError:
        raise InvalidQuestion("The address has a host name that cannot be encoded.") from None
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(host)):
        raise InvalidQuestion(
            "The address must be https; http is only for this machine (loopback)."
        )
    shown = f"[{host}]" if ":" in host else host
    default = 443 if parts.scheme == "https" else 80
    return f"{parts.scheme}://{shown}" + ("" if port in (None, default) else f":{port}")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
