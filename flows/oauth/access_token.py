"""Who calls, by an access token of the issuer (RFC 9068, RFC 7519).

What could go wrong: a token that was made for another server, by another issuer, for a sign-in, or
by nobody: `alg` none, or HMAC with the public key as its secret. Only asymmetric signatures by a
key that the issuer publishes count, and every claim below is compared. An id_token can have our
audience where one registration serves both, so what only an id_token says is refused. So is a
token that is bound to its caller's key, which nobody proves to have here.
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec
from joserfc.util import urlsafe_b64decode

from flows.errors import ElicitError
from flows.oauth.id_token import ALGORITHMS, is_timely, signed_claims
from flows.oauth.responses import SCOPES_AT_MOST, TOKEN_BYTES_AT_MOST, is_list

SUBJECT_CLAIM = ("sub",)
CLAIM_BYTES_AT_MOST = 255
CAME_AT_MOST = 200  # letters of what a token said, in a log
LIFE_AT_MOST = timedelta(days=3650)
ASKED_AGAIN = timedelta(seconds=60)  # what an issuer said of a token that only it can read
TYPES = frozenset({"at+jwt", "jwt"})
# What an id_token or a logout token says and an access token does not; and the key that a token is
# bound to, by DPoP or mutual TLS, without which it must not count (RFC 9449, 7.2; RFC 8705, 3).
_OF_OTHERS = frozenset({"nonce", "at_hash", "c_hash", "events", "cnf"})
# What an access token says and an id_token does not (RFC 9068, 2.2; Okta).
_OF_ACCESS = frozenset({"scope", "scp", "client_id", "cid"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """What tokens must be made for: this server, by its one issuer.

    `url` is the canonical address, as the metadata document says it. `audiences` are other names
    for it, for issuers that know no addresses (RFC 8707) and write an id of theirs. `beside` are
    addresses of this server for other uses than calls, each with tokens of its own. `claim` names
    what a person is known by, `scopes` what a call needs at least, `asked` what clients are told to
    ask the issuer for, besides; `wanted` are claims with a value, by which more is known of people.
    """

    url: str
    issuer: str
    audiences: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    claim: tuple[str, ...] = SUBJECT_CLAIM
    scopes: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    wanted: frozenset[tuple[str, str]] = frozenset()

    @property
    def advertised(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.asked, *self.scopes)))

    def takes(self, verified: "Verified") -> bool:
        """Return True if the token was made for calls of this server, whatever else it is for."""
        return not {_plain(self.url), *self.audiences}.isdisjoint(verified.made_for)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUse:
    """The address that a token has to be made for, beside the one for calls.

    A token that was made for calls is of use too if it has the `scope` that an operator names by
    `setting`.
    """

    resource: str
    setting: str
    scope: str | None = None

    def refused(self, *, came: object) -> "BadBearer":
        """Return the error for a token that was made for something else."""
        expected = [self.resource] if self.scope is None else [self.resource, self.scope]
        return BadBearer("use", error="insufficient_scope", expected=expected, came=came)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Whose call it is; only `verify` makes one. Without a subject it is nobody's in particular.

    `claims` are the wanted ones that it has, each as `claim_mark` has it. `made_for` are the names
    of this server that its audience has. `signed_in_at` is when the token was issued, or when its
    issuer says that the person signed in (`auth_time`) if that was earlier.
    """

    issuer: str
    subject: str | None
    client_id: str
    scopes: tuple[str, ...]
    expires_at: datetime
    signed_in_at: datetime
    claims: tuple[str, ...] = ()
    made_for: tuple[str, ...] = ()


class BadBearer(ElicitError):
    """A call without a token that counts; `reason` is for logs, never for the sender.

    `expected` and `came` say more of it there, without anything of the token that was not verified
    but its header. `error` is the code of RFC 6750, 3.1; None where nothing was sent at all.
    """

    name = "ELICITATION_BAD_BEARER"
    http_status = 401

    def __init__(
        self,
        reason: str,
        *,
        error: str | None = "invalid_token",
        expected: object = None,
        came: object = None,
    ) -> None:
        self.reason = reason
        self.expected = expected
        self.came = None if came is None else repr(came)[:CAME_AT_MOST]
        self.error = error
        super().__init__(_WORDS[error])


_WORDS = {
    None: "This server answers those only who bring an access token.",
    "invalid_request": "The access token must come in one Authorization header and nowhere else.",
    "invalid_token": "This access token is too old, damaged, or not made for this server.",
    "insufficient_scope": "This access token does not allow what this server is for.",
}


def key_id_of(token: str) -> str | None:
    """Which key the token says it was signed with; nothing is proven by that.

    Raises BadBearer for what is no token of ours, whatever key it was signed with. Its header need
    not say which type it is (RFC 7519, 5.1), as Okta's do not; one that says another is refused.
    """
    said = _header(token)
    if said.get("alg") not in ALGORITHMS:
        raise BadBearer("algorithm", expected=sorted(ALGORITHMS), came=said.get("alg"))
    kind = said.get("typ", "jwt")
    if not isinstance(kind, str) or kind.lower().removeprefix("application/") not in TYPES:
        raise BadBearer("type", expected=sorted(TYPES), came=kind)
    key_id = said.get("kid")
    if key_id is not None and not isinstance(key_id, str):
        raise BadBearer("no token")
    return key_id


def _header(token: str) -> Mapping[str, Any]:
    if len(token) > TOKEN_BYTES_AT_MOST or not token.isascii():
        raise BadBearer("no token")
    if token.count(".") != 2:
        raise BadBearer("opaque", expected="a JWT (RFC 9068)", came=f"{len(token)} letters")
    try:
        header = msgspec.json.decode(urlsafe_b64decode(token.partition(".")[0].encode()))
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise BadBearer("no token") from None
    if not isinstance(header, dict):
        raise BadBearer("no token")
    return cast("dict[str, Any]", header)


def verify(
    token: str, *, resource: Resource, keys: Sequence[Mapping[str, Any]], now: datetime
) -> Verified:
    """Whose token it is, by these keys of the issuer. Raises BadBearer unless all of it holds."""
    key_id_of(token)
    header = _header(token)
    if not keys:
        raise BadBearer("unknown key", expected="a kid that it publishes", came=header.get("kid"))
    claims = signed_claims(token, list(keys))
    if claims is None:
        named = {name: header.get(name) for name in ("kid", "alg")}
        raise BadBearer("signature", expected="one by a key that it publishes", came=named)
    verified = _whose(claims, resource=resource, now=now)
    if "typ" not in header and not _OF_ACCESS & claims.keys():
        raise BadBearer("type")
    return verified


def introspected(says: Mapping[str, Any], *, resource: Resource, now: datetime) -> Verified:
    """Whose token it is, as its issuer says (RFC 7662, 2.2).

    Raises BadBearer unless all of it holds. What an issuer may leave out counts as good, but for
    the audience: whether a token was made for this server is nothing to guess.
    """
    if says.get("active") is not True:
        raise BadBearer("not active", expected="one that its issuer calls active")
    if str(says.get("token_type", "bearer")).lower() not in ("bearer", "access_token"):
        raise BadBearer("type", expected="Bearer", came=says["token_type"])
    seconds = int(now.timestamp())
    until = seconds + ASKED_AGAIN.seconds + 1  # a whole second, after it is asked about again
    left_out = {"iss": resource.issuer, "iat": seconds, "exp": until}
    return _whose({**left_out, **says}, resource=resource, now=now)


def _whose(claims: Mapping[str, Any], *, resource: Resource, now: datetime) -> Verified:
    if claims.get("iss") != resource.issuer:
        raise BadBearer("issuer", expected=resource.issuer, came=claims.get("iss"))
    made_for = _names_in(claims.get("aud"), resource)
    if not made_for:
        expected = [resource.url, *resource.audiences]
        raise BadBearer("audience", expected=expected, came=claims.get("aud"))
    if not is_timely(claims, now=now):
        times = {name: _away(claims.get(name), now=now) for name in ("iat", "nbf", "exp")}
        raise BadBearer("time", expected="iat and nbf before now, exp after it", came=times)
    if others := _OF_OTHERS & claims.keys():
        raise BadBearer("another kind of token", expected="an access token", came=sorted(others))
    return Verified(
        issuer=resource.issuer,
        subject=subject_of(claims, claim=resource.claim),
        client_id=_client(claims),
        scopes=_scopes(claims),
        expires_at=_expiry(claims["exp"], now=now),
        signed_in_at=_sign_in(claims, now=now),
        claims=claim_marks(claims, resource.wanted),
        made_for=made_for,
    )


def _away(moment: object, *, now: datetime) -> str | None:
    """How far from now: clocks that differ show in it."""
    if not isinstance(moment, int | float):
        return None
    return f"{moment - now.timestamp():+.0f} s"


def subject_of(claims: Mapping[str, Any], *, claim: tuple[str, ...]) -> str | None:
    """Whom the claims of a caller or of a browser speak of; None unless all of them are there.

    `sub` stands as it is. Anything else is written with its names, so that it never equals the
    `sub` of somebody else, nor another pair that reads the same when joined.
    """
    values = {name: claims.get(name) for name in claim}
    if not values or not all(map(_is_identifier, values.values())):
        return None
    if claim == SUBJECT_CLAIM:
        return str(values["sub"])
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def claim_mark(name: str, value: str) -> str:
    """A claim with its value, as short as a cookie needs it."""
    return hashlib.sha256(f"{name}\0{value}".encode("utf-8", "surrogatepass")).hexdigest()[:16]


def claim_marks(
    claims: Mapping[str, object], wanted: Collection[tuple[str, str]]
) -> tuple[str, ...]:
    """Of the wanted ones, those that the claims of a verified token have: a text, or in a list."""

    def has(name: str, value: str) -> bool:
        said = claims.get(name)
        return value in cast("list[object]", said) if is_list(said) else value == said

    return tuple(sorted(claim_mark(*pair) for pair in wanted if has(*pair)))


def _is_identifier(value: Any) -> bool:
    return (
        isinstance(value, str)
        and value.isprintable()
        and 0 < len(value.encode()) <= CLAIM_BYTES_AT_MOST
    )


def _names_in(audience: Any, resource: Resource) -> tuple[str, ...]:
    """Exactly our addresses, or these with one slash more or less at their end."""
    ours = {_plain(url) for url in (resource.url, *resource.beside)}
    several = audience if is_list(audience) else [audience]
    texts = [each for each in several if isinstance(each, str)]
    named = [each for each in texts if each in resource.audiences]
    return tuple(dict.fromkeys([*named, *(_plain(each) for each in texts if _plain(each) in ours)]))


def _plain(url: str) -> str:
    return url.removesuffix("/")


def _client(claims: Mapping[str, Any]) -> str:
    """RFC 9068; OpenID Connect; Microsoft's first version; Okta. Empty where none is named."""
    named = (claims.get(name) for name in ("client_id", "azp", "appid", "cid"))
    return next((str(each) for each in named if _is_identifier(each)), "")


def _scopes(claims: Mapping[str, Any]) -> tuple[str, ...]:
    said = claims.get("scope", claims.get("scp"))
    words = said.split(" ") if isinstance(said, str) else said if is_list(said) else []
    kept = dict.fromkeys(word for word in words if isinstance(word, str) and word)
    return tuple(kept)[:SCOPES_AT_MOST]


def _sign_in(claims: Mapping[str, Any], *, now: datetime) -> datetime:
    """Return a moment no later than now, and within every calendar.

    A token that was made by refreshing another one has a new `iat`, and its old `auth_time`.
    """
    moments = [now.timestamp(), claims["iat"]]
    signed_in = claims.get("auth_time")
    if isinstance(signed_in, int | float) and signed_in < now.timestamp():
        moments.append(signed_in)
    return datetime.fromtimestamp(max(0, min(moments)), UTC)


def _expiry(seconds: float, *, now: datetime) -> datetime:
    """Compared before it is converted: a number can lie beyond every calendar."""
    latest = now + LIFE_AT_MOST
    return latest if seconds > latest.timestamp() else datetime.fromtimestamp(seconds, UTC)
