"""Userinfo: what the issuer says about a person in addition to the id_token (OIDC Core 1.0, 5.3).

Risks: the reply is about another person, or for another client. A signed reply is accepted only
with the issuer's signature, issuer and audience, and `person_in` compares the subject.
"""

from collections.abc import Mapping
from typing import Any

import httpx

from flows.elicitation.flow import Talk
from flows.errors import Failed
from flows.oauth.discovery import discover
from flows.oauth.id_token import fetched_keys, is_for, person_in, signed_claims
from flows.oauth.provider import Client
from flows.oauth.requests import ApiAccess, ask_as, asked_who, get
from flows.oauth.responses import Person, read_person, read_userinfo

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


def owner_of_token(client: Client, *, access: ApiAccess) -> Talk[Person]:
    """Return the person whose account an access token opens, as the provider's API says.

    Raises:
        Failed: The provider refuses the token, or does not say whose account it opens.
    """
    provider, person = client.provider, None
    if provider.person is not None and provider.person.url is not None:
        reply = yield from asked_who(provider, provider.person, access=access)
        others = {} if provider.tenant is None else {"tenant": provider.tenant}
        person, _ = read_person(reply, provider, provider.person, others=others)
    elif provider.discovers and provider.person is None:
        metadata = yield from discover(provider)
        if metadata.userinfo is not None:
            says = yield from userinfo_of(
                client,
                metadata.userinfo,
                access=access,
                issuer=provider.issuer,
                jwks=metadata.jwks,
            )
            person = person_in(says)
    if person is None:
        raise Failed(f"{provider.label} did not say whose account it is.")
    return person


def _is_signed(reply: httpx.Response) -> bool:
    kind = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
    return reply.status_code == 200 and kind == SIGNED
