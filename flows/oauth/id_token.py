"""Verification of id_tokens, which say whose account it is (OpenID Connect Core 1.0, 3.1.3.7).

Risks: the server accepts a token that was made for another client, for another sign-in or by
another issuer, or a forged token (`alg` none, or HMAC with the client secret). The server therefore
accepts only asymmetric signatures by a key that the issuer publishes, and compares every claim
below. HS256 is refused: a person who reads the client secret could sign in as anyone, and an
attacker could use a published key as the secret.

Userinfo adds to what the id_token says (OIDC Core 1.0, 5.3). Its reply could be about another
person, or for another client. A signed reply is accepted only with the issuer's signature, issuer
and audience, and `person_in` compares the subject.
"""

import hmac
import json
from base64 import urlsafe_b64decode
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import httpx
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from flows.elicitation.flow import Talk
from flows.errors import Failed
from flows.oauth.client_assertion import Signatures
from flows.oauth.discovery import discover
from flows.oauth.provider import Client, Provider
from flows.oauth.requests import ApiAccess, SetupFault, Unreachable, ask, ask_as, asked_who, get
from flows.oauth.responses import (
    Person,
    details_in,
    is_list,
    is_temporary_reply,
    keys_of,
    no_person,
    person_of,
    read_person,
    read_userinfo,
)

ALGORITHMS = (
    *(f"{kind}{bits}" for kind in ("RS", "PS", "ES") for bits in (256, 384, 512)),
    *("EdDSA", "Ed25519"),
)
LEEWAY_SECONDS = 60
ACCEPTED = "RS256, ES256 or EdDSA"  # for people
KEYS_AT_MOST = 100
RSA_CHARACTERS_AT_LEAST = 342  # 2048 bits in base64url
RSA_CHARACTERS_AT_MOST = 2731  # 16384 bits: verifying with a longer key costs too much time


def verified_claims(
    token: str | None,
    *,
    provider: Provider,
    client_id: str,
    issuer: str,
    nonce: str,
    keys: Sequence[Mapping[str, Any]],
    now: datetime,
) -> Mapping[str, Any]:
    """Return the id_token's claims.

    Raises:
        SetupFault: The issuer signs with another algorithm, or one of the clocks is wrong.
        Failed: The token is missing, its signature is wrong, or it was not made for this sign-in.
    """
    if token is None:
        raise Failed(f"{provider.label} did not say which person signed in.")
    algorithm = algorithm_in(token)
    if algorithm is not None and algorithm not in (provider.algorithms or ALGORITHMS):
        raise SetupFault(
            f"{provider.label} sent an ID token signed with {algorithm}. This server accepts only "
            f"{', '.join(provider.algorithms)}."
            if provider.algorithms
            else f"{provider.label} sent an ID token signed with {algorithm}. This server accepts "
            "only signatures that a published key verifies, such as RS256 or ES256.",
            fix=algorithm_fix(provider),
        )
    claims = signed_claims(token, keys, algorithms=provider.algorithms)
    if claims is None:
        raise Failed(f"{provider.label} sent an ID token whose signature is not valid.")
    if not has_valid_times(claims, now=now):
        raise SetupFault(
            f"{provider.label} sent an ID token that is not valid at the time of this server's "
            "clock.",
            fix="set this machine's clock by NTP (timedatectl set-ntp true), and check the "
            f"clock of {provider.label}",
        )
    if (
        claims.get("iss") != issuer
        or not is_of_tenant(claims, provider.issuers.get(issuer))
        or not is_for(claims, client_id)
        or not _is_same(claims.get("nonce"), nonce)
    ):
        raise Failed(f"{provider.label} sent an ID token that was issued for another sign-in.")
    return claims


def fetched_keys(jwks: str, provider: Provider) -> Talk[Sequence[Mapping[str, Any]]]:
    """Fetch the keys that the issuer publishes, and return them.

    Raises:
        Unreachable: The issuer did not send its keys.
        SetupFault: None of the keys can verify a signature.
    """
    label, reply = provider.label, (yield from ask(get(jwks, provider=provider), provider))
    if is_temporary_reply(reply):
        says = f"{label} did not send its keys (HTTP {reply.status_code})."
        raise Unreachable(says, fix="check its status page")
    keys = keys_of(reply) or []
    if not usable_keys(keys):
        raise SetupFault(
            f"{label} publishes no usable keys to verify signatures with.", fix=keys_fix(jwks)
        )
    return keys


def keys_fix(jwks: str) -> str:
    return f"add a key for {ACCEPTED} there; an RSA key needs at least 2048 bits ({jwks})"


def algorithm_fix(provider: Provider) -> str:
    accepted = ", ".join(provider.algorithms) or ACCEPTED
    return (
        f"configure it to sign this client's ID tokens with {accepted} "
        f"(id_token_signed_response_alg at {provider.label})"
    )


def person_in(claims: Mapping[str, Any], *, more: Mapping[str, Any] | None = None) -> Person | None:
    """Return the person of an id_token's claims, completed with userinfo (`more`).

    Return None if the id_token has no subject, or if `more` has a different subject.
    """
    if more is not None:
        if more.get("sub") != claims.get("sub"):
            return None
        claims = {**more, **claims}
    if not isinstance(claims.get("sub"), str):
        return None
    return person_of(
        id=claims["sub"],
        labels=(claims.get("email"), claims.get("preferred_username"), claims.get("name")),
        name=claims.get("name"),
        picture=claims.get("picture"),
    )


def algorithm_in(token: str) -> str | None:
    """Return the algorithm that a token's header names, unverified, or None without one."""
    try:
        header: object = json.loads(_decoded(token.partition(".")[0]))
    except (ValueError, RecursionError):
        return None
    named = cast("dict[str, object]", header).get("alg") if isinstance(header, dict) else None
    is_name = isinstance(named, str) and len(named) <= 16 and named.isascii() and named.isalnum()
    return str(named) if is_name else None


def usable_keys(keys: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the published keys that can verify a signature."""
    return [found for key in keys[:KEYS_AT_MOST] if (found := _key(key)) is not None]


def is_of_tenant(claims: Mapping[str, Any], tenant: str | None) -> bool:
    """Return True if the claims name this tenant (`tid`), or if the issuer has no tenants."""
    return tenant is None or claims.get("tid") == tenant


def signed_claims(
    token: str, keys: Sequence[Mapping[str, Any]], *, algorithms: Sequence[str] = ()
) -> Mapping[str, Any] | None:
    """Return the token's claims if one of these keys signed it, else None.

    Without `algorithms`, all of ALGORITHMS are accepted.
    """
    is_edwards = (algorithm_in(token) or "").startswith("Ed")
    usable = [key for key in usable_keys(keys) if (key.key_type == "OKP") is is_edwards]
    if not usable:
        return None
    registry = Signatures(algorithms=algorithms or ALGORITHMS, strict_check_header=False)
    try:
        return jwt.decode(token, KeySet(usable), registry=registry).claims
    except (JoseError, ValueError, TypeError, RecursionError):  # the token can be any bytes
        return None


def unsigned_claims(token: str) -> Mapping[str, Any] | None:
    """Return a token's claims without verifying its signature, or None if it is no JWT.

    Use this function only for tokens that came from the issuer itself, over TLS. Verifying would
    need the issuer's keys, and fetching them can fail.
    """
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims: object = json.loads(_decoded(parts[1]))
    except (ValueError, RecursionError):
        return None
    return cast("Mapping[str, Any]", claims) if isinstance(claims, dict) else None


def is_for(claims: Mapping[str, Any], client_id: str) -> bool:
    """Return True if the claims were made for this client, and for no other client."""
    audience = claims.get("aud")
    several = audience if is_list(audience) else [audience]
    if client_id not in several:
        return False
    # A token for several audiences must name this client as its authorized party (`azp`).
    return ("azp" not in claims and len(several) == 1) or claims.get("azp") == client_id


def _decoded(part: str) -> bytes:
    return urlsafe_b64decode(part + "=" * (-len(part) % 4))


def has_valid_times(claims: Mapping[str, Any], *, now: datetime) -> bool:
    """Return True if the claims have `iat` and `exp` and are valid now (`iat`, `nbf`, `exp`)."""
    registry = jwt.JWTClaimsRegistry(
        now=int(now.timestamp()),
        leeway=LEEWAY_SECONDS,
        exp={"essential": True},
        iat={"essential": True},
    )
    times = {key: claims[key] for key in ("exp", "iat", "nbf") if key in claims}
    try:
        registry.validate(times)
    except JoseError:
        return False
    return True


def _key(key: Mapping[str, Any]) -> Any:
    """Return the public key for verifying signatures, or None if it is unsuitable or invalid."""
    kind, modulus = key.get("kty"), key.get("n")
    if kind not in ("RSA", "EC", "OKP") or key.get("use", "sig") != "sig":
        return None
    if kind == "RSA" and not (
        isinstance(modulus, str)
        and RSA_CHARACTERS_AT_LEAST <= len(modulus) <= RSA_CHARACTERS_AT_MOST
    ):
        return None
    names = ["kty", "kid", "use", "alg", "n", "e", "crv", "x", "y"]
    if kind == "OKP":
        if key.get("crv") != "Ed25519":
            return None
        names.remove("alg")  # EdDSA and Ed25519 are two names of one algorithm for this key
    public = {name: key[name] for name in names if isinstance(key.get(name), str)}
    try:
        return KeySet.registry_cls.import_key(public)
    except (JoseError, ValueError, TypeError, KeyError):  # KeyError: an unknown curve
        return None


def _is_same(nonce: Any, expected: str) -> bool:
    if not isinstance(nonce, str):
        return False
    return hmac.compare_digest(nonce.encode("utf-8", "surrogatepass"), expected.encode())


# Userinfo: what the issuer says about a person in addition to the id_token.

SIGNED = "application/jwt"


def userinfo_of(
    client: Client, endpoint: str, *, access: ApiAccess, issuer: str | None, jwks: str | None
) -> Talk[Mapping[str, Any]]:
    """Fetch the claims of the userinfo endpoint, which can be signed (5.3.2). Raises Failed."""
    provider = client.provider
    reply = yield from ask_as(access, get(endpoint, provider=provider), provider)
    if not _is_signed(reply):
        return read_userinfo(reply, provider)
    keys = () if jwks is None else (yield from fetched_keys(jwks, provider))
    text = reply.content.decode("ascii", "replace").strip()
    claims = signed_claims(text, keys, algorithms=provider.algorithms)
    if claims is None or claims.get("iss") != issuer or not is_for(claims, client.client_id):
        raise Failed(
            f"{provider.label} sent userinfo whose signature is not valid for this server."
        )
    return claims


def named_person(
    claims: Mapping[str, Any],
    client: Client,
    *,
    userinfo: str | None,
    access: ApiAccess,
    issuer: str,
    jwks: str,
) -> Talk[Person | None]:
    """Return the person of the claims. If the claims have no readable name, fetch userinfo too.

    The claims identify the person. If the userinfo endpoint fails, only the name is missing.
    """
    more = None
    is_named = any(claims.get(name) for name in ("email", "preferred_username", "name"))
    if userinfo is not None and not is_named:
        try:
            more = yield from userinfo_of(client, userinfo, access=access, issuer=issuer, jwks=jwks)
        except Failed:
            more = None
    return person_in(claims, more=more)


def whose_account(
    client: Client,
    *,
    access: ApiAccess,
    others: Mapping[str, Any],
    userinfo: str | None,
    issuer: str | None,
    jwks: str | None,
) -> Talk[tuple[Person, Mapping[str, str]]]:
    """Return the person whose account an access token opens, and the values of `keep`.

    The provider's API says it, or the userinfo endpoint if the declaration names no API for this.
    `others` is as in `read_person`.

    Raises:
        Failed: The provider refuses the token, or does not say whose account it opens.
    """
    provider = client.provider
    if provider.person is not None:
        reply = yield from asked_who(provider, provider.person, access=access)
        return read_person(reply, provider, provider.person, others=others)
    if userinfo is not None:
        says = yield from userinfo_of(client, userinfo, access=access, issuer=issuer, jwks=jwks)
        if (person := person_in(says)) is not None:
            return person, details_in(others, provider)
    raise no_person(provider)


def owner_of_token(client: Client, *, access: ApiAccess) -> Talk[Person]:
    """Return the person whose account an access token opens, by the token alone.

    Raises:
        Failed: The provider refuses the token, or does not say whose account it opens.
    """
    provider, userinfo, jwks = client.provider, None, None
    if provider.person is not None and provider.person.url is None:
        raise no_person(provider)
    if provider.discovers and provider.person is None:
        metadata = yield from discover(provider)
        userinfo, jwks = metadata.userinfo, metadata.jwks
    others = {} if provider.tenant is None else {"tenant": provider.tenant}
    person, _ = yield from whose_account(
        client, access=access, others=others, userinfo=userinfo, issuer=provider.issuer, jwks=jwks
    )
    return person


def _is_signed(reply: httpx.Response) -> bool:
    kind = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
    return reply.status_code == 200 and kind == SIGNED
