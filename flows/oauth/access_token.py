"""Verification of callers' access tokens (RFC 9068, RFC 7519).

Risks: the server accepts a token that was made for another server, by another issuer or for a
sign-in, or a forged token (`alg` none, or HMAC with the public key as its secret). So only
asymmetric signatures by a key that the issuer publishes count, and every claim below is compared.
If sign-ins and calls use the same registration, an id_token can have this server's audience. Tokens
with claims that only an id_token has are therefore refused. Tokens that are bound to the caller's
key are refused too, because this server does not check that the caller has the key.
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, cast

import msgspec
from joserfc.util import urlsafe_b64decode

from flows.errors import ElicitError
from flows.oauth.id_token import (
    ALGORITHMS,
    has_valid_times,
    is_of_tenant,
    signed_claims,
    unsigned_claims,
)
from flows.oauth.responses import SCOPES_AT_MOST, TOKEN_BYTES_AT_MOST, is_list
from flows.shown import counted

SUBJECT_CLAIM = ("sub",)
CLAIM_BYTES_AT_MOST = 255
RECEIVED_AT_MOST = 200  # characters of a token's value in a log
LIFE_AT_MOST = timedelta(days=3650)
_FAR_AWAY = 1e15  # seconds
ASKED_AGAIN = timedelta(seconds=60)  # how long an introspection result is used
TYPES = frozenset({"at+jwt", "jwt"})
# Claims of id_tokens and logout tokens; and `cnf`, the key that a token is bound to by DPoP or
# mutual TLS: such a token must be refused unless the caller proves the key (RFC 9449, 7.2;
# RFC 8705, 3).
_OF_OTHERS = frozenset({"nonce", "at_hash", "c_hash", "events", "cnf"})
# Claims that access tokens have and id_tokens do not (RFC 9068, 2.2; Okta).
_OF_ACCESS = frozenset({"scope", "scp", "client_id", "cid"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """This server as a protected resource, with one issuer whose tokens it accepts.

    `url` is the canonical address, as in the metadata document. `audiences` are other names for
    this server: issuers without RFC 8707 write an id of their own into tokens. `other_resources`
    are other addresses of this server, each of which needs tokens that were made for it. `claim`
    names the claims that identify a person. `scopes` are required for every call. `asked` are more
    scopes, which the metadata tells clients to request. `wanted` are the (claim, value) pairs, such
    as roles, to look for in tokens. `tenant` is the id that tokens must have as `tid`, if the
    issuer has several tenants. `algorithms` are the accepted signatures.
    """

    url: str
    issuer: str
    audiences: tuple[str, ...] = ()
    other_resources: tuple[str, ...] = ()
    claim: tuple[str, ...] = SUBJECT_CLAIM
    scopes: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    wanted: frozenset[tuple[str, str]] = frozenset()
    tenant: str | None = None
    algorithms: tuple[str, ...] = ALGORITHMS

    @property
    def advertised(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.asked, *self.scopes)))

    def takes(self, verified: "Verified") -> bool:
        """Return True if the token is for calls of this server. It may have other uses as well."""
        return not {_plain(self.url), *self.audiences}.isdisjoint(verified.made_for)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUse:
    """The audience that a token needs for uses other than tool calls, such as the HTTP API.

    A token that was made for tool calls is accepted too if it has `scope`, which the operator sets
    with `setting`.
    """

    resource: str
    setting: str
    scope: str | None = None

    def refused(self, *, received: object) -> "BadBearer":
        """Return the error for a token that was made for something else."""
        expected = [self.resource] if self.scope is None else [self.resource, self.scope]
        return BadBearer("use", error="insufficient_scope", expected=expected, received=received)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The caller that a verified access token identifies. Without a subject it is anonymous.

    Only `verify` and `introspected` create instances. `claims` are the marks (`claim_mark`) of the
    wanted claims that the token has. `made_for` are this server's names in the token's audience.
    `signed_in_at` is when the token was issued, or `auth_time` if that was earlier.
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
    """The error for a call without a valid token; `reason` is for logs, never for the sender.

    `expected` and `received` are details for the log. Before the signature is verified, they
    contain nothing of the token but its header. `error` is the code of RFC 6750, 3.1, or None if
    no token was sent.
    """

    name = "ELICITATION_BAD_BEARER"
    http_status = 401

    def __init__(
        self,
        reason: str,
        *,
        error: str | None = "invalid_token",
        expected: object = None,
        received: object = None,
    ) -> None:
        self.reason = reason
        self.expected = expected
        self.received: str | None = None if received is None else repr(received)[:RECEIVED_AT_MOST]
        self.error = error
        super().__init__(_WORDS[error])


_WORDS = {
    None: "This server requires an access token. Send one in an Authorization header.",
    "invalid_request": "The access token must come in one Authorization header and nowhere else.",
    "invalid_token": "This access token is expired, damaged, or not issued for this server.",
    "insufficient_scope": "This access token lacks a scope that this server requires.",
}


def issuer_in(token: str) -> str | None:
    """Return the issuer that the token claims, unverified, or None if the token names none.

    Use the result only to choose the issuer: its keys then have to verify the token.

    Raises:
        BadBearer: The token is no JWT.
    """
    _header(token)
    claims = unsigned_claims(token) or {}
    return claims["iss"] if isinstance(claims.get("iss"), str) else None


def key_id_of(
    token: str, *, algorithms: Sequence[str] = ALGORITHMS, types: Collection[str] = TYPES
) -> str | None:
    """Return the id of the key that the token claims to be signed with, without verifying it.

    The header may lack `typ` (RFC 7519, 5.1), as in Okta's tokens. An unexpected `typ` is refused.

    Raises:
        BadBearer: The token is no JWT, or its header has another algorithm or type.
    """
    header = _header(token)
    if header.get("alg") not in algorithms:
        raise BadBearer("algorithm", expected=sorted(algorithms), received=header.get("alg"))
    kind = header.get("typ", "jwt")
    if not isinstance(kind, str) or kind.lower().removeprefix("application/") not in types:
        raise BadBearer("type", expected=sorted(types), received=kind)
    key_id = header.get("kid")
    if key_id is not None and not isinstance(key_id, str):
        raise BadBearer("no token")
    return key_id


def _header(token: str) -> Mapping[str, Any]:
    if len(token) > TOKEN_BYTES_AT_MOST or not token.isascii():
        raise BadBearer("no token")
    if token.count(".") != 2:
        raise BadBearer(
            "opaque", expected="a JWT (RFC 9068)", received=counted(len(token), "character")
        )
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
    """Verify a token with the issuer's `keys`, and return its caller.

    Raises:
        BadBearer: The signature, a claim or the type is wrong.
    """
    key_id_of(token, algorithms=resource.algorithms)
    header = _header(token)
    if not keys:
        raise BadBearer(
            "unknown key", expected="a kid that the issuer publishes", received=header.get("kid")
        )
    claims = signed_claims(token, list(keys), algorithms=resource.algorithms)
    if claims is None:
        named = {name: header.get(name) for name in ("kid", "alg")}
        raise BadBearer(
            "signature",
            expected="a token signed with a key that the issuer publishes",
            received=named,
        )
    verified = _whose(claims, resource=resource, now=now)
    if "typ" not in header and not _OF_ACCESS & claims.keys():
        raise BadBearer("type")
    return verified


def introspected(says: Mapping[str, Any], *, resource: Resource, now: datetime) -> Verified:
    """Return the caller of a token from the issuer's introspection response (RFC 7662, 2.2).

    Optional members that are null or missing count as correct. Only the audience is required: the
    server does not guess whether a token was made for this server.

    Raises:
        BadBearer: The token is not active, or a member of the response is wrong.
    """
    says = {name: value for name, value in says.items() if value is not None}
    if says.get("active") is not True:
        raise BadBearer("not active", expected="a token that its issuer calls active")
    if str(says.get("token_type", "bearer")).lower() not in ("bearer", "access_token"):
        raise BadBearer("type", expected="Bearer", received=says["token_type"])
    seconds = int(now.timestamp())
    until = seconds + ASKED_AGAIN.seconds + 1  # one second after the token is introspected again
    left_out = {"iss": resource.issuer, "iat": seconds, "exp": until}
    return _whose({**left_out, **says}, resource=resource, now=now)


def _whose(claims: Mapping[str, Any], *, resource: Resource, now: datetime) -> Verified:
    if claims.get("iss") != resource.issuer:
        raise BadBearer("issuer", expected=resource.issuer, received=claims.get("iss"))
    if not is_of_tenant(claims, resource.tenant):
        raise BadBearer("tenant", expected=f"tid {resource.tenant}", received=claims.get("tid"))
    made_for = _names_in(claims.get("aud"), resource)
    if not made_for:
        expected = [resource.url, *resource.audiences]
        raise BadBearer("audience", expected=expected, received=claims.get("aud"))
    if not has_valid_times(claims, now=now):
        times = {name: _away(claims.get(name), now=now) for name in ("iat", "nbf", "exp")}
        raise BadBearer("time", expected="iat and nbf before now, exp after it", received=times)
    if others := _OF_OTHERS & claims.keys():
        raise BadBearer(
            "another kind of token", expected="an access token", received=sorted(others)
        )
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
    """Return how far `moment` is from now. In the log, this shows that two clocks differ."""
    if not isinstance(moment, int | float):
        return None
    limited = max(-_FAR_AWAY, min(moment, _FAR_AWAY))  # an integer can be larger than any float
    return f"{limited - now.timestamp():+.0f} s"


def subject_of(claims: Mapping[str, Any], *, claim: tuple[str, ...]) -> str | None:
    """Return the subject of a caller's or browser's claims, or None if a named claim is missing.

    `claim` names the claims. `sub` alone is returned unchanged. Other claims become JSON with their
    names, so that they never equal another person's `sub`, nor other values that read the same
    when joined.
    """
    values = {name: claims.get(name) for name in claim}
    if not values or not all(map(_is_identifier, values.values())):
        return None
    if claim == SUBJECT_CLAIM:
        return str(values["sub"])
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def claim_mark(name: str, value: str) -> str:
    """Return a short hash of a claim and its value, which fits into a cookie."""
    return hashlib.sha256(f"{name}\0{value}".encode("utf-8", "surrogatepass")).hexdigest()[:16]


def claim_marks(
    claims: Mapping[str, object], wanted: Collection[tuple[str, str]]
) -> tuple[str, ...]:
    """Return the marks of the `wanted` pairs that the claims contain, as a text or in a list."""

    def has(name: str, value: str) -> bool:
        claimed = claims.get(name)
        return value in cast("list[object]", claimed) if is_list(claimed) else value == claimed

    return tuple(sorted(claim_mark(*pair) for pair in wanted if has(*pair)))


def _is_identifier(value: Any) -> bool:
    return (
        isinstance(value, str)
        and value.isprintable()
        and 0 < len(value.encode()) <= CLAIM_BYTES_AT_MOST
    )


def _names_in(audience: Any, resource: Resource) -> tuple[str, ...]:
    """Return this server's names in a token's audience; a slash at an address's end is ignored."""
    accepted = {_plain(url) for url in (resource.url, *resource.other_resources)}
    several = audience if is_list(audience) else [audience]
    texts = [each for each in several if isinstance(each, str)]
    named = [each for each in texts if each in resource.audiences]
    return tuple(
        dict.fromkeys([*named, *(_plain(each) for each in texts if _plain(each) in accepted)])
    )


def _plain(url: str) -> str:
    return url.removesuffix("/")


def _client(claims: Mapping[str, Any]) -> str:
    """Return the client's id, or "" if the token names none.

    The claims are those of RFC 9068, OpenID Connect, Microsoft's v1.0 tokens and Okta.
    """
    named = (claims.get(name) for name in ("client_id", "azp", "appid", "cid"))
    return next((str(each) for each in named if _is_identifier(each)), "")


def _scopes(claims: Mapping[str, Any]) -> tuple[str, ...]:
    stated = claims.get("scope", claims.get("scp"))
    words = stated.split(" ") if isinstance(stated, str) else stated if is_list(stated) else []
    unique = dict.fromkeys(word for word in words if isinstance(word, str) and word)
    return tuple(unique)[:SCOPES_AT_MOST]


def _sign_in(claims: Mapping[str, Any], *, now: datetime) -> datetime:
    """Return when the person signed in: the earliest of `auth_time`, `iat` and now.

    A refreshed token has a new `iat` and the old `auth_time`. The result is never before 1970, so
    that every value can be converted.
    """
    moments = [now.timestamp(), claims["iat"]]
    signed_in = claims.get("auth_time")
    if isinstance(signed_in, int | float) and signed_in < now.timestamp():
        moments.append(signed_in)
    return datetime.fromtimestamp(max(0, min(moments)), UTC)


def _expiry(seconds: float, *, now: datetime) -> datetime:
    """Return `exp` as a datetime, LIFE_AT_MOST from now at the latest.

    The number is compared before it is converted, because `datetime` cannot hold every number.
    """
    latest = now + LIFE_AT_MOST
    return latest if seconds > latest.timestamp() else datetime.fromtimestamp(seconds, UTC)


# Teams: people who share accounts, because a claim of their issuer or the operator names them.
#
# Risks: a person of another issuer with the same claim uses a team's account, or a person who has
# left still uses it. So a claim counts only together with its issuer, and only if that issuer
# signed it into the token of the current request. Claims that a program or a client sends are
# ignored. On the pages, an old sign-in does not count.


@dataclass(frozen=True, kw_only=True)
class Team:
    """A table `[teams.NAME]`: the people of the team, and the providers whose accounts they share.

    A person is a member if one of `issuers` names one of these values in one of these `claims`, or
    if the application's user is among `users`.
    """

    name: str
    label: str
    providers: frozenset[str]
    claims: Mapping[str, tuple[str, ...]]
    issuers: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()

    @property
    def pairs(self) -> frozenset[tuple[str, str]]:
        """The claims as pairs of a name and one value."""
        claims = self.claims.items()
        return frozenset((name, value) for name, values in claims for value in values)

    @cached_property
    def _marks(self) -> frozenset[str]:
        return frozenset(claim_mark(*pair) for pair in self.pairs)

    def has(self, issuer: str | None, marks: Collection[str]) -> bool:
        """Return True if a person of this issuer whose claims have these `marks` is a member."""
        return issuer in self.issuers and not self._marks.isdisjoint(marks)
