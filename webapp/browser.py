"""The browser's side: the cookie that binds a browser, the CSRF field, the headers of every page.

What could go wrong: a form of ours sent from another site, a page of ours in a frame, a link or
its token in a Referer. The cookie proves "the same browser as before", never who uses it: any
port of this machine can read and overwrite a cookie of 127.0.0.1.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlsplit

_COOKIE_BYTES = 24
_COOKIE_LIFE_SECONDS = 24 * 60 * 60


class Browser:
    """Reads and makes what a browser carries, for one public URL."""

    def __init__(self, *, public_url: str, csrf_keys: Callable[[], Sequence[bytes]]) -> None:
        parts = urlsplit(public_url)
        self._is_https = parts.scheme == "https"
        port = parts.port or (443 if self._is_https else 80)
        # `__Host-` needs https; on loopback the port in the name keeps two servers apart.
        self.cookie_name = "__Host-elicit" if self._is_https else f"elicit_{port}"
        self._csrf_keys = csrf_keys  # newest first; asked each time, as secrets are rotated

    def fresh(self) -> str:
        return secrets.token_urlsafe(_COOKIE_BYTES)

    def cookie_of(self, cookies: Mapping[str, str]) -> str | None:
        value = cookies.get(self.cookie_name)
        return value if value and len(value) == len(self.fresh()) else None

    def set_cookie(self, value: str) -> str:
        """The whole Set-Cookie header."""
        secure = "; Secure" if self._is_https else ""
        return (
            f"{self.cookie_name}={value}; Path=/; Max-Age={_COOKIE_LIFE_SECONDS}; "
            f"HttpOnly; SameSite=Lax{secure}"
        )

    def hash(self, value: str) -> str:
        """What a record keeps of the cookie."""
        return hashlib.sha256(b"elicit-url browser" + value.encode()).hexdigest()

    def hash_of(self, cookies: Mapping[str, str]) -> str | None:
        """The hash of the binding cookie, if this browser has one."""
        cookie = self.cookie_of(cookies)
        return None if cookie is None else self.hash(cookie)

    def csrf(self, cookie: str, *, subject: str) -> str:
        """The hidden field of a form about `subject` (an elicitation's id) in this browser."""
        return _csrf(self._csrf_keys()[0], cookie, subject)

    def is_csrf(self, value: str, cookie: str, *, subject: str) -> bool:
        given = value.encode("utf-8", "replace")
        return any(
            hmac.compare_digest(given, _csrf(key, cookie, subject).encode())
            for key in self._csrf_keys()
        )


def _csrf(key: bytes, cookie: str, subject: str) -> str:
    return hmac.new(key, f"{len(cookie)} {cookie} {subject}".encode(), "sha256").hexdigest()


def page_headers(*, form_targets: Sequence[str] = ()) -> dict[str, str]:
    """Headers of every page; a form that leads on to other origins must name them."""
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
        "x-robots-tag": "noindex",
    }
