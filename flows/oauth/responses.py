"""Parsing of a provider's replies: tokens, and whose account it is.

Risks: the server uses an invalid reply, such as an error page, an error with status 200, or a token
with characters that are not allowed in a header. So valid replies become typed values, and invalid
replies raise Failed. People see the error message, so the message contains nothing from the reply
except a short error code.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, TypeGuard, cast
from urllib.parse import parse_qsl, quote

import httpx
import msgspec

from flows.errors import Failed, InvalidQuestion
from flows.oauth.declaration import VALUE_AT_MOST, paths_of
from flows.oauth.provider import PersonProbe, Provider
from flows.origin import origin_of

TOKEN_BYTES_AT_MOST = 8 * 1024
EXPIRY_AT_MOST = timedelta(days=3650)
SCOPES_AT_MOST = 200
ID_AT_MOST = 255
LABEL_AT_MOST = 80
LABEL_SEPARATOR = " · "
PICTURE_AT_MOST = 2048
ERROR_CODE = re.compile(r"[a-z_.]{1,64}")
TOKEN_TYPES = frozenset({"", "bearer", "bot", "user"})  # the last two are Slack's
_PASSING_STATUS = frozenset(
    {
        HTTPStatus.PROXY_AUTHENTICATION_REQUIRED,
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.MISDIRECTED_REQUEST,
        HTTPStatus.TOO_EARLY,
        HTTPStatus.TOO_MANY_REQUESTS,
    }
)

# Providers' names for the lifetime of a refresh token, for which no standard has a name.
_REFRESH_EXPIRIES = (
    *("refresh_token_expires_in", "x_refresh_token_expires_in", "refresh_expires_in"),
)
_TOKEN = re.compile(r"[\x21-\x7e]+")
# Some servers send a byte order mark before their JSON. A parser may ignore it (RFC 8259, 8.1).
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSet:
    """An account's access token, with the refresh token if there is one."""

    access_token: str = field(repr=False)
    refresh_token: str | None = field(default=None, repr=False)
    expires_at: datetime | None = None
    refresh_expires_at: datetime | None = None
    token_type: str = "Bearer"  # noqa: S105  # the name of a token type


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """The person of an account.

    `id` is the provider's id of the person and never changes. `label` is the text that pages show.
    If `id` consists of several members of the reply, `own_id` is the last member. Otherwise,
    `own_id` is None. Earlier versions stored some accounts with `own_id` as the person's id.
    """

    id: str
    label: str
    name: str | None = None
    picture: str | None = None
    own_id: str | None = None

    def is_called(self, account: str) -> bool:
        """Return True if `account` is the person's id or label. Ignore the case of the label.

        If a label has several parts, such as a workspace and a name, one part is enough.
        """
        label, wanted = self.label.casefold(), account.casefold()
        return account == self.id or wanted in (label, *label.split(LABEL_SEPARATOR))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenReply:
    """A token endpoint's reply. `scopes` is None if the reply does not mention them."""

    tokens: TokenSet
    scopes: tuple[str, ...] | None
    id_token: str | None = field(default=None, repr=False)
    members: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)


def read_token_reply(
    reply: httpx.Response,
    provider: Provider,
    *,
    now: datetime,
    is_bound: bool = False,
    content: Mapping[str, Any] | None = None,
) -> TokenReply:
    """Return the tokens in a reply that is no refusal (`refusal_in`).

    Raises Failed if it has no usable access token.

    `is_bound`: the request had a proof (DPoP), so the token must be bound to the key. `content` are
    the reply's members, if they were read before.
    """
    content = content or _json_object(reply, provider)
    if reply.status_code not in (200, 201) or content is None:
        raise Failed(f"{provider.label} did not issue an access token (HTTP {reply.status_code}).")
    says = content
    for key in provider.token_path:
        says = _inside(says, key)
    access_token = _token(says, "access_token", provider)
    if access_token is None:
        raise Failed(f"{provider.label} did not issue an access token.")
    token_type = says.get("token_type") or ""
    known = TOKEN_TYPES | {one.lower() for one in provider.token_types}
    if is_bound:
        known = frozenset({"dpop"})
    if not isinstance(token_type, str) or token_type.lower() not in known:
        raise Failed(
            f"{provider.label} issued an access token of a type that this server does not support."
        )
    id_token = content.get("id_token")
    return TokenReply(
        tokens=TokenSet(
            access_token=access_token,
            refresh_token=_token(says, "refresh_token", provider),
            expires_at=_expiry(says.get("expires_in"), now=now),
            refresh_expires_at=_refresh_expiry(says, provider, now=now),
        ),
        scopes=_scopes(says.get("scope"), provider),
        id_token=id_token if isinstance(id_token, str) else None,
        members=content,
    )


def read_person(
    reply: httpx.Response | None,
    provider: Provider,
    probe: PersonProbe,
    *,
    others: Mapping[str, Any],
) -> tuple[Person, Mapping[str, str]]:
    """Return the person and the account's details. Raises Failed if the reply names no person.

    `reply` is the reply to the probe, or None if the probe has no URL. `others` are the other
    members that a path can name, such as those of the token endpoint's reply.
    """
    says = {} if reply is None else object_in(reply)
    success = 200 if provider.key is None else provider.key.status
    if says is None or (reply is not None and reply.status_code != success):
        raise no_person(provider, "" if reply is None else f" (HTTP {reply.status_code})")
    says = {**says, **others}
    ids = [_id(member_of(says, path)) for path in paths_of(probe.id)]
    if None in ids:
        raise no_person(provider)
    named = [member_of(says, path) for path in paths_of(probe.label)]
    parts = [word for one in named if (word := _words(_id(one) or one))]  # a label can be a number
    has_several = len(ids) > 1
    person = person_of(
        # Encoded, so that different lists of ids never become the same text.
        id="/".join(quote(id, safe="") for id in ids if id) if has_several else ids[0],
        labels=(LABEL_SEPARATOR.join(parts),),
        name=member_of(says, probe.name),
        picture=member_of(says, probe.picture),
    )
    if person is None:
        raise no_person(provider)
    person = replace(person, own_id=ids[-1]) if has_several else person
    return person, details_in(says, provider)


def details_in(says: Mapping[str, Any], provider: Provider) -> Mapping[str, str]:
    """Return the details that `keep` declares. Omit values except integers and short texts."""
    found = {
        name: _id(member_of(says, path), VALUE_AT_MOST) for name, path in provider.keep.items()
    }
    return {name: value for name, value in found.items() if value is not None}


def read_userinfo(reply: httpx.Response, provider: Provider) -> Mapping[str, Any]:
    """Return the claims from the userinfo endpoint's reply. Raises Failed."""
    says = object_in(reply)
    if reply.status_code != 200 or says is None:
        raise no_person(provider, f" (HTTP {reply.status_code})")
    return says


def person_of(*, id: Any, labels: tuple[Any, ...], name: Any, picture: Any) -> Person | None:
    """Return the person, or None if the id is invalid. Use the first of `labels` that is valid."""
    id = _id(id)
    if id is None:
        return None
    label = next(filter(None, map(_words, labels)), None)
    return Person(
        id=id,
        label=label or id[:LABEL_AT_MOST],
        name=_words(name),
        picture=_picture(picture),
    )


def keys_of(reply: httpx.Response) -> list[Mapping[str, Any]] | None:
    """Return the keys of a key set (RFC 7517), or None if the reply is no key set."""
    keys = (object_in(reply) or {}).get("keys")
    if reply.status_code != 200 or not is_list(keys):
        return None
    return [key for key in keys if isinstance(key, dict)]


def is_temporary_reply(reply: httpx.Response) -> bool:
    """Return True for a temporary error: the status of a proxy or of a busy server."""
    return reply.is_server_error or reply.status_code in _PASSING_STATUS


def is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def members_of(reply: httpx.Response, provider: Provider) -> Mapping[str, Any]:
    """Return the members of a JSON or form reply, or {} if the reply is neither.

    Form replies are read only if the declaration has `replies` set to form.
    """
    return _json_object(reply, provider) or {}


def _json_object(reply: httpx.Response, provider: Provider) -> dict[str, Any] | None:
    says = object_in(reply)
    return _form(reply) if says is None and provider.replies == "form" else says


def object_in(reply: httpx.Response) -> dict[str, Any] | None:
    try:
        says = msgspec.json.decode(reply.content.removeprefix(_BYTE_ORDER_MARK))
    except (msgspec.DecodeError, RecursionError, ValueError):  # ValueError: not UTF-8
        return None
    return cast("dict[str, Any]", says) if isinstance(says, dict) else None


def member_of(says: Mapping[str, Any], path: str | None) -> Any:
    """Return the member at a path such as `user.email`, or None if no member is there."""
    if path is None:
        return None
    *outer, last = path.split(".")
    for key in outer:
        says = _inside(says, key)
    return says.get(last)


def _form(reply: httpx.Response) -> dict[str, Any] | None:
    kind = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        return None
    try:
        pairs = parse_qsl(reply.content.decode("ascii"), max_num_fields=50)
    except ValueError:  # includes UnicodeError
        return None
    return dict(pairs) if len(dict(pairs)) == len(pairs) else None


def _token(says: Mapping[str, Any], key: str, provider: Provider) -> str | None:
    token = says.get(key)
    if token in (None, ""):
        return None
    if (
        not isinstance(token, str)
        or len(token) > TOKEN_BYTES_AT_MOST
        or not _TOKEN.fullmatch(token)
    ):
        raise Failed(f"{provider.label} issued an access token that is not valid.")
    return token


def _refresh_expiry(
    says: Mapping[str, Any], provider: Provider, *, now: datetime
) -> datetime | None:
    """Return when the refresh token expires: as the reply says, or else as declared.

    `refresh_unused_days` is the declared number of days without use.
    """
    named = [_expiry(says.get(key), now=now) for key in _REFRESH_EXPIRIES]
    named_end = next((at for at in named if at is not None), None)
    days = provider.refresh_unused_days
    return named_end if named_end is not None or days is None else now + timedelta(days=days)


def _expiry(seconds: Any, *, now: datetime) -> datetime | None:
    if isinstance(seconds, str) and re.fullmatch(r"-?[0-9]{1,10}(\.[0-9]{1,10})?", seconds):
        seconds = float(seconds)
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        return None
    if not 1 <= seconds < EXPIRY_AT_MOST.total_seconds():
        # Some providers send 0 for a token that does not expire. Taken literally, it would cause
        # a refresh at each use.
        return None
    return now + timedelta(seconds=seconds)


def _scopes(value: Any, provider: Provider) -> tuple[str, ...] | None:
    if isinstance(value, str):
        value = value.split(provider.reply_scope_separator)
    if not is_list(value):
        return None
    words = (word.strip() for word in value if isinstance(word, str))
    unique = dict.fromkeys(word for word in words if _TOKEN.fullmatch(word) and len(word) <= 512)
    return tuple(unique)[:SCOPES_AT_MOST]


def _inside(says: Mapping[str, Any], key: str) -> dict[str, Any]:
    inner = says.get(key)
    return cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}


def _id(value: Any, at_most: int = ID_AT_MOST) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    is_one = isinstance(value, str) and 0 < len(value) <= at_most and value.isprintable()
    return str(value) if is_one else None


def _words(text: Any) -> str | None:
    """Return the printable part of a text, without characters that change its direction."""
    if not isinstance(text, str):
        return None
    plain = "".join(character for character in text[: 4 * LABEL_AT_MOST] if character.isprintable())
    return plain.strip()[:LABEL_AT_MOST].strip() or None


def _picture(address: Any) -> str | None:
    if not isinstance(address, str) or len(address) > PICTURE_AT_MOST:
        return None
    try:
        origin_of(address)
    except InvalidQuestion:
        return None
    return address


def no_person(provider: Provider, more: str = "") -> Failed:
    return Failed(f"{provider.label} did not say whose account it is{more}.")
