"""The kind `url`: a visit to any address, which ends when its service says so.

What could go wrong: an address that is not what the tool's author wrote (a model's or an
attacker's text in it). Its origin must therefore be a literal of the call, and the page shows it.
"""

import ipaddress
import re
import string
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias
from urllib.parse import quote, urlsplit

import httpx
import idna

from flows.elicitation import Elicitation, Json
from flows.errors import InvalidQuestion
from flows.flow import Departure, Trip
from flows.question import Link

UrlOrBuilder: TypeAlias = str | Callable[[Link], str]
URL_AT_MOST = 8192
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")


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

    def prepare(self, elicitation: Elicitation, trip: Trip) -> Json:
        return None

    def begin(
        self, elicitation: Elicitation, trip: Trip
    ) -> Generator[httpx.Request, httpx.Response, Departure]:
        yield from ()
        assert elicitation.asked.url is not None
        return Departure(url=elicitation.asked.url)


def origin_of(url: str) -> str:
    """Scheme, host and port of an address fit for a person (RFC 6454).

    Raises InvalidQuestion unless it is https (http on loopback), without user information,
    control characters or white space, and 8192 characters at most.
    """
    if len(url) > URL_AT_MOST or "\\" in url or " " in url or not url.isprintable():
        raise InvalidQuestion("The address is too long, or has a sign in it that none may have.")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        is_bracketed = "[" in parts.netloc
    except ValueError:
        raise InvalidQuestion("The address cannot be read as a URL.") from None
    if not host or parts.username is not None or parts.password is not None:
        raise InvalidQuestion(
            "The address needs a host and must not carry a user name or password."
        )
    host = _host(host, is_bracketed=is_bracketed)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(host)):
        raise InvalidQuestion(
            "The address must be https; http is only for this machine (loopback)."
        )
    shown = f"[{host}]" if is_bracketed else host
    default = 443 if parts.scheme == "https" else 80
    return f"{parts.scheme}://{shown}" + ("" if port in (None, default) else f":{port}")


@lru_cache(maxsize=256)  # the literals of a server's tools
def is_origin(text: str) -> bool:
    """Whether the text is an origin and nothing else; raises as `origin_of` does."""
    return origin_of(text) == text


def _host(host: str, *, is_bracketed: bool) -> str:
    """As browsers read it (UTS 46), so that the host shown is the one that is gone to."""
    try:
        if is_bracketed:
            return str(_unscoped(ipaddress.IPv6Address(host)))
        plain = host.lower() if host.isascii() else idna.encode(host, uts46=True).decode()
    except ValueError:  # UnicodeError is one
        raise InvalidQuestion("The address has a host name that cannot be encoded.") from None
    if not _HOST.fullmatch(plain):
        raise InvalidQuestion("The address has a host name that no host can have.")
    return plain


def _unscoped(address: ipaddress.IPv6Address) -> ipaddress.IPv6Address:
    if address.scope_id is not None:
        raise ValueError("an address with a zone means something on one machine only")
    return address


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
