"""The origin of an address that a person is sent to: scheme, host and port (RFC 6454).

Risks: an address seems to lead to one host and leads to another. It may contain a user name that
looks like a host, letters that look alike, or characters that browsers read differently. This
module rejects or rewrites such addresses.
"""

import ipaddress
import re
from functools import lru_cache
from urllib.parse import urlsplit

import idna

from flows.errors import InvalidQuestion

URL_AT_MOST = 8192
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")


def origin_of(url: str) -> str:
    """Return the origin of an address that is safe to show to a person (RFC 6454).

    Raises InvalidQuestion unless the address is https (http on loopback), has no user information,
    control characters or white space, and is at most 8192 characters long.
    """
    if len(url) > URL_AT_MOST or "\\" in url or " " in url or not url.isprintable():
        raise InvalidQuestion(
            "The address is longer than 8192 characters, or contains a space, a control character "
            "or another character that addresses cannot have."
        )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        is_bracketed = "[" in parts.netloc
    except ValueError:
        raise InvalidQuestion("The address cannot be read as a URL.") from None
    if not parts.scheme:
        raise InvalidQuestion("The address has to begin with https://.")
    if not host or parts.username is not None or parts.password is not None:
        raise InvalidQuestion("The address must have a host, and no user name or password.")
    host = _host(host, is_bracketed=is_bracketed)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(host)):
        raise InvalidQuestion(
            "The address must be https. Only an address of this machine (loopback) can begin with "
            "http://."
        )
    shown = f"[{host}]" if is_bracketed else host
    default = 443 if parts.scheme == "https" else 80
    return f"{parts.scheme}://{shown}" + ("" if port in (None, default) else f":{port}")


@lru_cache(maxsize=256)  # a server's tools pass the same few texts again and again
def is_origin(text: str) -> bool:
    """Return True if the text is exactly an origin. Raises InvalidQuestion like `origin_of`."""
    return origin_of(text) == text


def written_origin(url: str) -> str:
    """Return the origin of a URL from the operator, as it is written and without checks."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def _host(host: str, *, is_bracketed: bool) -> str:
    """Return the host as browsers read it (UTS 46), so that the host shown is the host visited."""
    try:
        if is_bracketed:
            return str(_unscoped(ipaddress.IPv6Address(host)))
        plain = host.lower() if host.isascii() else idna.encode(host, uts46=True).decode()
    except ValueError:  # includes UnicodeError
        raise InvalidQuestion("The address has a host name that cannot be encoded.") from None
    if not _HOST.fullmatch(plain):
        raise InvalidQuestion("The address has an invalid host name.")
    return plain


def _unscoped(address: ipaddress.IPv6Address) -> ipaddress.IPv6Address:
    if address.scope_id is not None:
        raise ValueError("an IPv6 address with a zone is valid on one machine only")
    return address


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
