"""The authentication of a caller: the client's password, or the bearer of an access token."""

import secrets
from base64 import b64decode
from collections.abc import Mapping
from urllib.parse import unquote_plus

from webapp.sandbox.authorization.granted import GrantRefused
from webapp.sandbox.authorization.habits import PlayedRefusal
from webapp.sandbox.authorization.requests import Parameters
from webapp.sandbox.settings import Sandbox


def require_client(headers: Mapping[str, str], form: Parameters, *, sandbox: Sandbox) -> None:
    """Check the client's password, from the header or the form.

    Raises:
        GrantRefused: The client is wrong, or identifies itself twice.
        Repeated: A field came more than once.
    """
    basic = basic_of(headers)
    posted = (form.get("client_id"), form.get("client_secret"))
    if basic is not None and posted[1] is not None:
        raise GrantRefused(PlayedRefusal.INVALID_REQUEST, "The client sent its name twice.")
    if basic is not None and posted[0] not in (None, basic[0]):
        raise GrantRefused(PlayedRefusal.INVALID_REQUEST, "The client named itself in two ways.")
    id, secret = basic or posted
    if not is_client(id or "", secret or "", sandbox=sandbox):
        raise GrantRefused(PlayedRefusal.INVALID_CLIENT, "The client or its password is wrong.")


def is_client(id: str, secret: str, *, sandbox: Sandbox) -> bool:
    is_id = secrets.compare_digest(id.encode(), sandbox.client_id.encode())
    is_secret = secrets.compare_digest(secret.encode(), sandbox.client_secret.encode())
    return is_id and is_secret


def basic_of(headers: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the name and password of HTTP Basic, decoded as form values (RFC 6749, 2.3.1)."""
    scheme, _, text = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        id, mark, secret = b64decode(text.strip(), validate=True).decode().partition(":")
    except ValueError:
        return None
    return (unquote_plus(id), unquote_plus(secret)) if mark else None


def bearer_of(headers: Mapping[str, str], *, schemes: tuple[str, ...] = ("bearer",)) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() in schemes else None
