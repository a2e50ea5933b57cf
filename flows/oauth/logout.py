"""Sign-outs that the issuer reports (OpenID Connect Back-Channel Logout 1.0).

Risks: somebody signs other people out with a token that the issuer made for something else, for
somebody else, or long ago. A logout token must therefore be signed with a key of this issuer, name
this server's registration as its only audience, be minutes old, and have the member of `events`
that only logout tokens have. An ID token has a nonce, which no logout token may have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from flows.oauth.access_token import BadBearer, key_id_of
from flows.oauth.id_token import (
    ALGORITHMS,
    LEEWAY_SECONDS,
    is_for,
    is_of_tenant,
    is_timely,
    signed_claims,
)
from flows.oauth.provider import Client, Provider

EVENT = "http://schemas.openid.net/event/backchannel-logout"
VALID_FOR = timedelta(minutes=10)
NAME_CHARACTERS_AT_MOST = 1024
_TYPES = frozenset({"logout+jwt", "jwt"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LogoutToken:
    """The sessions that have ended at the issuer: the session `sid`, or all of the person `sub`.

    If both are set, only the session `sid` of the person `sub` has ended. The token expires at
    `until`.
    """

    issuer: str
    jti: str
    sub: str
    sid: str
    until: datetime


def logout_key_id(token: str, provider: Provider) -> str | None:
    """Return the id of the key that a logout token claims to be signed with, without verifying it.

    Raises:
        BadBearer: The header shows that it cannot be a logout token of this issuer.
    """
    return key_id_of(token, algorithms=provider.algorithms or ALGORITHMS, types=_TYPES)


def verified_logout(
    token: str, *, client: Client, issuer: str, keys: Sequence[Mapping[str, Any]], now: datetime
) -> LogoutToken:
    """Return the content of a logout token that one of the issuer's `keys` signed.

    Raises:
        BadBearer: The signature, a claim or the type is wrong.
    """
    provider = client.provider
    key_id = logout_key_id(token, provider)
    if not keys:
        raise BadBearer("unknown key", expected="a kid that the issuer publishes", received=key_id)
    claims = signed_claims(token, keys, algorithms=provider.algorithms)
    if claims is None:
        raise BadBearer("signature", expected="a token that the issuer signed", received=key_id)
    if claims.get("iss") != issuer or not is_of_tenant(claims, provider.issuers.get(issuer)):
        raise BadBearer("issuer", expected=issuer, received=claims.get("iss"))
    if not is_for(claims, client.client_id):
        raise BadBearer("audience", expected=client.client_id, received=claims.get("aud"))
    if not is_timely(claims, now=now):
        raise BadBearer("time", expected="iat before now and exp after it")
    # Compared as a number first, because `datetime` cannot hold every number.
    if not claims["iat"] > (now - VALID_FOR).timestamp():
        raise BadBearer("time", expected=f"a token of the last {VALID_FOR.seconds // 60} minutes")
    until = datetime.fromtimestamp(claims["iat"], UTC) + VALID_FOR
    return _named_in(claims, issuer=issuer, until=until + timedelta(seconds=LEEWAY_SECONDS))


def _named_in(claims: Mapping[str, Any], *, issuer: str, until: datetime) -> LogoutToken:
    events = claims.get("events")
    event = cast("dict[str, Any]", events).get(EVENT) if isinstance(events, dict) else None
    if "nonce" in claims or not isinstance(event, dict):
        raise BadBearer("another kind of token", expected=f"the event {EVENT}, and no nonce")
    sub, sid, jti = (name_in(claims, name) for name in ("sub", "sid", "jti"))
    if ("sub" in claims and not sub) or ("sid" in claims and not sid) or not (sub or sid):
        raise BadBearer("subject", expected="sub, sid or both, as texts")
    if not jti:
        raise BadBearer("jti", expected="the id of the token, as a text")
    return LogoutToken(issuer=issuer, jti=jti, sub=sub, sid=sid, until=until)


def name_in(claims: Mapping[str, Any], name: str) -> str:
    """Return a claim that is a text, or "" if it is missing, too long or no text."""
    value = claims.get(name)
    return value if isinstance(value, str) and len(value) <= NAME_CHARACTERS_AT_MOST else ""
