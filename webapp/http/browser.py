"""The browser: its cookies, the CSRF field, queries, and the security headers of every page.

Risks: another site submits one of our forms, shows our page in a frame, or receives a link or its
token in a Referer. The cookie proves that the browser is the same as before, not which person uses
the browser: a program on any port of this machine can read and overwrite cookies of 127.0.0.1.

If a browser without a cookie opens several links at once, each response sets a cookie, and the last
one wins. Each value is therefore also stored under a second name, so that forms and attempts of all
these pages still belong to the same browser.

Risks: a request costs more to read than to send. The framework parses cookies in quadratic time and
caches the last thousand cookies, queries and paths. Cookies are therefore split here in one pass
and not decoded, because our own cookies need no decoding. Queries are parsed here too. An author's
own routes receive everything unchanged.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias
from urllib.parse import parse_qs, urlsplit

from webapp.http.address import PublicAddress
from webapp.http.exchange import facts_of

_FIELDS_AT_MOST = 1000

Fields: TypeAlias = dict[str, list[str]]


class ReadRequest(Protocol):
    """A request of any framework."""

    @property
    def scope(self) -> Mapping[str, Any]: ...


def cookies_of(request: ReadRequest) -> Mapping[str, str]:
    """Return the cookies as sent. If two cookies have the same name, return the last one."""
    facts = facts_of(request.scope)
    if facts.cookies is None:
        found: dict[str, str] = {}
        for value in facts.headers.get(b"cookie", []):
            for pair in value.split(";"):
                key, equals, word = pair.partition("=")
                if equals:
                    found[key.strip()] = word.strip()
        facts.cookies = found
    return facts.cookies


def query_of(request: ReadRequest) -> Fields:
    """Return the fields of the query, or none if there are too many."""
    return parsed(request.scope["query_string"])


def parsed(text: bytes) -> Fields:
    """Return the fields of a form or a query, or none if there are too many."""
    try:
        return parse_qs(
            text.decode("utf-8", "replace"),
            keep_blank_values=True,
            max_num_fields=_FIELDS_AT_MOST,
        )
    except ValueError:
        return {}


_COOKIE_BYTES = 24
_COOKIE_CHARACTERS = _COOKIE_BYTES * 4 // 3  # in base64, without padding
_COOKIE_LIFE_SECONDS = 24 * 60 * 60
# Limit for one browser. Programs on other ports of this machine could set many more cookies.
_COOKIES_AT_MOST = 32
_TAG_CHARACTERS = 8
# Browser features that no page uses. `clipboard-write` is needed to copy a link.
_UNUSED_FEATURES = (
    *("camera", "display-capture", "fullscreen", "geolocation", "microphone", "midi", "payment"),
    *("picture-in-picture", "publickey-credentials-get", "screen-wake-lock", "usb"),
)


class FirstCookie(str):
    """The Set-Cookie header for a browser that has no valid cookie of this server yet.

    On loopback, another program may have used this port before. That program's data in the browser,
    including service workers, is cleared. Cookies stay, because all ports of a machine share them.
    """

    __slots__ = ("clears",)
    clears: bool


class Browser:
    """The cookies and CSRF tokens of browsers, for one public URL."""

    def __init__(self, *, public_url: str, csrf_keys: Callable[[], Sequence[bytes]]) -> None:
        parts = urlsplit(public_url)
        self._is_https = parts.scheme == "https"
        address = PublicAddress.parse(public_url)
        # If the public URL has a path, other applications use the same origin and its stored data.
        self._clears = address.is_on_loopback and not address.root_path
        self.cookie_name = cookie_name(public_url)
        self._csrf_keys = csrf_keys  # newest first; read on every use, because secrets are rotated

    def fresh(self) -> str:
        return secrets.token_urlsafe(_COOKIE_BYTES)

    def cookie_of(self, cookies: Mapping[str, str], *, known: str | None = None) -> str | None:
        """Return the browser's cookie or None. Prefer the cookie whose hash is `known`."""
        values = self._all_of(cookies)
        same = (value for value in values if known is not None and self.hash(value) == known)
        return next(same, next(iter(values), None))

    def set_cookies(self, value: str) -> tuple[FirstCookie, ...]:
        """Return all Set-Cookie headers for this cookie value."""
        secure = "; Secure" if self._is_https else ""
        rest = f"Path=/; Max-Age={_COOKIE_LIFE_SECONDS}; HttpOnly; SameSite=Lax{secure}"
        names = (self.cookie_name, self._suffixed_name(value))
        headers = tuple(FirstCookie(f"{name}={value}; {rest}") for name in names)
        for header in headers:
            header.clears = self._clears
        return (*headers, *self.marks(value, {}))

    def marks(self, value: str, cookies: Mapping[str, str]) -> tuple[FirstCookie, ...]:
        """Return the cookie that records that the storage was cleared, or () if none is needed.

        No cookie is needed if the browser has it, or if this server never clears the storage. A
        program on another port can set cookies before we do, but cannot compute the value of this
        cookie, which needs our key.
        """
        name, mark = f"{self.cookie_name}_cleared", self.csrf(value, subject="cleared")
        known = cookies.get(name, "").encode("utf-8", "replace")
        if not self._clears or hmac.compare_digest(known, mark.encode()):
            return ()
        life = f"Max-Age={_COOKIE_LIFE_SECONDS}"
        header = FirstCookie(f"{name}={mark}; Path=/; {life}; HttpOnly; SameSite=Lax")
        header.clears = True
        return (header,)

    def hash(self, value: str) -> str:
        """Return the hash of the cookie, as records store it."""
        return hashlib.sha256(b"elicit-url browser" + value.encode()).hexdigest()

    def hash_of(self, cookies: Mapping[str, str], *, known: str | None = None) -> str | None:
        """Return the hash of the cookie that `cookie_of` selects, or None if there is no cookie."""
        cookie = self.cookie_of(cookies, known=known)
        return None if cookie is None else self.hash(cookie)

    def is_same(self, known: str, cookies: Mapping[str, str]) -> bool:
        """Return True if these are the cookies of the browser with the hash `known`."""
        return any(
            secrets.compare_digest(self.hash(value), known) for value in self._all_of(cookies)
        )

    def csrf(self, cookie: str, *, subject: str) -> str:
        """Return the CSRF field of a form about `subject` (such as an elicitation's id)."""
        return _csrf(self._csrf_keys()[0], cookie, subject)

    def is_csrf(self, value: str, cookies: Mapping[str, str], *, subject: str) -> bool:
        given = value.encode("utf-8", "replace")
        return any(
            hmac.compare_digest(given, _csrf(key, cookie, subject).encode())
            for cookie in self._all_of(cookies)
            for key in self._csrf_keys()
        )

    def _all_of(self, cookies: Mapping[str, str]) -> list[str]:
        """Return the valid cookie values of this browser, the most recent one first."""
        last = cookies.get(self.cookie_name, "")
        suffixed = [
            value
            for name, value in cookies.items()
            if name.startswith(f"{self.cookie_name}_") and name == self._suffixed_name(value)
        ]
        found = dict.fromkeys([last, *suffixed[:_COOKIES_AT_MOST]])
        return [value for value in found if len(value) == _COOKIE_CHARACTERS]

    def _suffixed_name(self, value: str) -> str:
        return f"{self.cookie_name}_{self.hash(value)[:_TAG_CHARACTERS]}"


def cookie_name(public_url: str, *, of: str = "") -> str:
    """Return a cookie name that is unique to this server on its host, by port and path.

    The prefix `__Host-` requires https and the cookie path /.
    """
    parts = urlsplit(public_url)
    path = parts.path.rstrip("/")
    apart = f"-{hashlib.sha256(path.encode()).hexdigest()[:_TAG_CHARACTERS]}" if path else ""
    if parts.scheme == "https":
        return "__Host-elicit" + (f"-{of}" if of else "") + apart
    return f"elicit_{of}_{parts.port or 80}{apart}" if of else f"elicit_{parts.port or 80}{apart}"


def _csrf(key: bytes, cookie: str, subject: str) -> str:
    return hmac.new(key, f"{len(cookie)} {cookie} {subject}".encode(), "sha256").hexdigest()


def page_headers(*, form_targets: Sequence[str] = ()) -> dict[str, str]:
    """Return the headers of every page. `form_targets` are other origins that forms may reach."""
    targets = " ".join(("'self'", *form_targets))
    return {
        "content-security-policy": (
            "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
            f"connect-src 'self'; form-action {targets}; frame-ancestors 'none'; base-uri 'none'"
        ),
        "referrer-policy": "no-referrer",
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "permissions-policy": ", ".join(f"{feature}=()" for feature in _UNUSED_FEATURES),
        "x-robots-tag": "noindex",
    }
