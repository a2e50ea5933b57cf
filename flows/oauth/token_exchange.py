"""Exchange of a person's own access token for a provider's token, without a question.

Three methods are supported. Token exchange (RFC 8693) and the jwt-bearer grant (RFC 7523) ask the
provider's token endpoint. The identity assertion grant (ID-JAG,
draft-ietf-oauth-identity-assertion-authz-grant) asks the person's issuer for an assertion, and
redeems it at the provider.

Risks: the person's token reaches somebody else, or the reply has another person's token. So the
token is sent to the declared token endpoint only, and no tool's code can declare an endpoint. The
assertion or the new token, or else the provider's API, must name the same person. A reply without
this proof is refused. No refresh token is stored, because it would outlive the person's sign-in.
For the same reason, a token without an expiry is exchanged again after an hour.
"""

import dataclasses
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from flows.elicitation.flow import Talk
from flows.errors import Failed
from flows.oauth.access_token import SUBJECT_CLAIM, subject_of
from flows.oauth.authorization_code import Grant, must_reach
from flows.oauth.declaration import TokenExchange
from flows.oauth.discovery import discover
from flows.oauth.id_token import unsigned_claims
from flows.oauth.provider import Client, Provider
from flows.oauth.requests import ApiAccess, ask, ask_token, asked_who, post
from flows.oauth.responses import (
    TokenReply,
    is_list,
    member_of,
    object_in,
    read_person,
    read_token_reply,
)
from flows.oauth.token_errors import refusal_in, refused

_GRANT: Final = "urn:ietf:params:oauth:grant-type:"
_TYPE: Final = "urn:ietf:params:oauth:token-type:"
_ID_JAG: Final = f"{_TYPE}id-jag"
LIFE_WITHOUT_END: Final = timedelta(hours=1)  # lifetime if the reply names none
_ACCESS: Final = frozenset({f"{_TYPE}access_token", f"{_TYPE}jwt"})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SubjectToken:
    """A person's own access token, verified for this server.

    `issuer` is the exact name in the token. `claim` are the names of the claims that make up
    `subject`.
    """

    text: str = dataclasses.field(repr=False)
    issuer: str
    subject: str
    claim: tuple[str, ...]

    def is_of(self, claims: Mapping[str, Any]) -> bool:
        """Return True if these claims are about the same person of the same issuer."""
        is_issuer = claims.get("iss") == self.issuer
        return is_issuer and subject_of(claims, claim=self.claim) == self.subject


def exchanged(
    client: Client,
    subject: SubjectToken,
    *,
    scopes: tuple[str, ...],
    issuer_client: Client | None,
    now: datetime,
) -> Talk[Grant]:
    """Exchange the person's token, and return the tokens of the provider with their person.

    `issuer_client` is this server's registration at the person's issuer.

    Raises:
        TokenRefused: An endpoint refused, for example because the person has to consent.
        Failed: An endpoint is unavailable, or its reply does not prove who the person is.
    """
    provider = client.provider
    how = provider.exchange
    assert how is not None
    asks = provider.scopes_to_request(scopes)
    more = provider.scope_parameters(asks)
    assertion = ""
    if how.kind == "id_jag":
        assertion = yield from _assertion(client, subject, more, issuer_client, now=now)
    values = at_provider(how, subject, more, assertion=assertion)
    granted = yield from _tokens(client, values, now=now)
    issued = granted.members.get("issued_token_type")
    if how.kind == "token_exchange" and not (isinstance(issued, str) and issued in _ACCESS):
        raise _unproven(provider, "issued another kind of token")
    is_proven = _names_subject(granted, subject, provider) or how.kind == "id_jag"
    access = ApiAccess(token=granted.tokens.access_token, now=now)
    assert provider.person is not None
    reply = yield from asked_who(provider, provider.person, access=access)
    others: dict[str, Any] = {"reply": granted.members, "id_token": {}}
    person, details = read_person(reply, provider, provider.person, others=others)
    if how.matches is not None:
        says = None if reply is None else object_in(reply)
        if says is None or member_of(says, how.matches) != _own_claim(subject):
            raise _unproven(provider, "named another person")
        is_proven = True
    if not is_proven:
        raise _unproven(provider, "did not say whose token it issued")
    must_reach(provider, details)
    return Grant(
        tokens=dataclasses.replace(
            granted.tokens,
            expires_at=granted.tokens.expires_at or now + LIFE_WITHOUT_END,
            refresh_token=None,
            refresh_expires_at=None,
        ),
        scopes=provider.granted(asks, named=granted.scopes or None),
        person=person,
        issuer=subject.issuer,
        details=details,
        asked=asks,
    )


def at_provider(
    how: TokenExchange, subject: SubjectToken, more: Mapping[str, str], *, assertion: str
) -> dict[str, str]:
    """Return the token request to the provider. `more` has the scopes.

    `assertion` is the issuer's assertion about the person (ID-JAG).
    """
    match how.kind:
        case "token_exchange":
            values = {**_exchange(subject, how), "requested_token_type": f"{_TYPE}access_token"}
            return {**values, **_target(how), **more, **dict(how.extra)}
        case "jwt_bearer":
            bearer = {"grant_type": f"{_GRANT}jwt-bearer", "assertion": subject.text}
            return {**bearer, **more, **dict(how.extra)}
        case "id_jag":
            return {"grant_type": f"{_GRANT}jwt-bearer", "assertion": assertion}


def at_issuer(
    how: TokenExchange, subject: SubjectToken, more: Mapping[str, str], *, audience: str
) -> dict[str, str]:
    """Return the request to the person's issuer for an assertion for the provider (ID-JAG)."""
    values = {**_exchange(subject, how), **_target(how), **more, **dict(how.extra)}
    return {**values, "requested_token_type": _ID_JAG, "audience": audience}


def _exchange(subject: SubjectToken, how: TokenExchange) -> dict[str, str]:
    return {
        "grant_type": f"{_GRANT}token-exchange",
        "subject_token": subject.text,
        "subject_token_type": f"{_TYPE}{how.subject_type}",
    }


def _target(how: TokenExchange) -> dict[str, str]:
    named = {"audience": how.audience, "resource": how.resource}
    return {name: value for name, value in named.items() if value is not None}


def _assertion(
    client: Client,
    subject: SubjectToken,
    more: Mapping[str, str],
    issuer_client: Client | None,
    *,
    now: datetime,
) -> Talk[str]:
    """Return the issuer's assertion for the provider (ID-JAG).

    Raises:
        TokenRefused: The issuer refused.
        Failed: The issuer is unavailable, or the assertion is for another person or provider.
    """
    provider = client.provider
    how = provider.exchange
    assert how is not None
    audience = how.audience or provider.issuer
    if issuer_client is None or audience is None:
        raise Failed(f"{provider.label} has no issuer to ask for an assertion.")
    issuer = issuer_client.provider
    found = yield from discover(issuer)
    request = post(
        issuer_client,
        endpoint=found.token,
        values=at_issuer(how, subject, more, audience=audience),
        client_auth=found.client_auth(issuer.client_auth),
        now=now,
    )
    reply = yield from ask(request, issuer)
    refusal = refusal_in(reply, issuer)
    if refusal is not None:
        otherwise = f"{issuer.label} issued no assertion"
        raise refused(refusal, issuer, otherwise=otherwise, methods=found.client_auths)
    says = object_in(reply) or {}
    text = says.get("access_token")
    if says.get("issued_token_type") != _ID_JAG or not isinstance(text, str):
        raise _unproven(issuer, "issued another kind of token")
    claims = unsigned_claims(text) or {}  # trusted: the issuer's own endpoint sent them
    if not subject.is_of(claims):
        raise _unproven(issuer, "issued an assertion for another person")
    if audience not in _audiences(claims):
        raise _unproven(issuer, "issued an assertion for another provider")
    return text


def _tokens(client: Client, values: Mapping[str, str], *, now: datetime) -> Talk[TokenReply]:
    provider = client.provider
    endpoint, client_auth, methods = provider.token, str(provider.client_auth), tuple[str, ...]()
    if endpoint is None:
        found = yield from discover(provider)
        endpoint, client_auth = found.token, found.client_auth(client_auth)
        methods = found.client_auths
    reply = yield from ask_token(client, endpoint, values, client_auth=client_auth, now=now)
    refusal = refusal_in(reply, provider)
    if refusal is not None:
        otherwise = f"{provider.label} exchanged no token"
        raise refused(refusal, provider, otherwise=otherwise, methods=methods)
    return read_token_reply(reply, provider, now=now)


def _names_subject(granted: TokenReply, subject: SubjectToken, provider: Provider) -> bool:
    """Return True if the new token itself names the person. Raises Failed if it names another.

    The signature is not verified, because the token comes from the declared endpoint.
    """
    how, claims = provider.exchange, unsigned_claims(granted.tokens.access_token)
    assert how is not None
    if claims is None:
        return False
    wanted = {how.audience, how.resource} - {None}
    if "aud" in claims and wanted and not wanted & _audiences(claims):
        raise _unproven(provider, "issued a token for another API")
    if claims.get("iss") != subject.issuer:
        return False
    if not subject.is_of(claims):
        raise _unproven(provider, "issued another person's token")
    return True


def _audiences(claims: Mapping[str, Any]) -> set[str]:
    named = claims.get("aud")
    several = named if is_list(named) else [named]
    return {one for one in several if isinstance(one, str)}


def _own_claim(subject: SubjectToken) -> str | None:
    """Return the value of the first claim that identifies people at the issuer."""
    if subject.claim == SUBJECT_CLAIM:
        return subject.subject
    named: dict[str, str] = msgspec.json.decode(subject.subject)
    return named.get(subject.claim[0])


def _unproven(provider: Provider, why: str) -> Failed:
    return Failed(f"{provider.label} {why}, so the server did not use it.")
