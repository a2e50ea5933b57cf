"""The verification of people's access tokens, the same for each endpoint (RFC 9068, RFC 7662).

Risks: a second endpoint checks less than the first. `/mcp` and the HTTP API therefore use the same
verifier: that of the issuer where people sign in, or the served server's own (`webapp.server`). The
text of a token stays inside this module.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol
from urllib.parse import parse_qsl

from mcp.server.auth.provider import AccessToken

from flows.oauth.access_token import (
    BadBearer,
    Resource,
    TokenUse,
    Verified,
    key_id_of,
    verify,
)
from webapp.deadline import Clock
from webapp.http.exchange import facts_of
from webapp.identity.identity import Identity, Subject
from webapp.identity.introspection import Introspection
from webapp.identity.issuer import Issuer

_FIELDS_AT_MOST = 100
_log = logging.getLogger(__name__)


class CheckedToken(AccessToken):
    """An access token that was verified here.

    Its subject is the claim by which our pages identify people. `approves_by` are the token's
    claims that are compared with the approvers' claims.
    """

    approves_by: tuple[str, ...] = ()
    signed_in_at: datetime


class Verifier(Protocol):
    """The protocol of a verifier of access tokens."""

    @property
    def issuer(self) -> str:
        """The issuer of tokens that name no issuer."""
        ...

    async def whose(self, text: str, *, sender: str, use: TokenUse | None = None) -> AccessToken:
        """Verify a token that came from the address `sender`. Without `use`, it must allow calls.

        Raises BadBearer, or Failed if the token cannot be verified at the moment.
        """
        ...


class IssuerTokens:
    """A Verifier for tokens that the issuer where people sign in made for this server."""

    def __init__(
        self,
        issuer: Issuer,
        *,
        resource: Resource,
        clock: Clock,
        introspection: Introspection | None = None,
    ) -> None:
        """Create the verifier. Opaque tokens, which only the issuer can read, need `introspection`.

        Raises ValueError unless the resource belongs to the issuer.
        """
        if resource.issuer != issuer.url:
            raise ValueError(
                f"{resource.url} cannot be protected by {issuer.url}: the resource names another "
                f"issuer, {resource.issuer}"
            )
        self.resource = resource
        self.issuer = issuer.url
        self._keys = issuer.keys
        self._clock = clock
        self._introspection = introspection

    async def whose(self, text: str, *, sender: str, use: TokenUse | None = None) -> CheckedToken:
        verified = await self._verified(text, sender=sender)
        is_for_calls, needed = self.resource.takes(verified), self.resource.scopes
        if use is not None and use.resource in verified.made_for:
            needed = ()  # these scopes are for calls
        elif use is not None and not (is_for_calls and use.scope in verified.scopes):
            raise use.refused(received=list(verified.made_for))
        elif not is_for_calls:
            expected = [self.resource.url, *self.resource.audiences]
            raise BadBearer("audience", expected=expected, received=list(verified.made_for))
        if not set(needed) <= set(verified.scopes):
            raise BadBearer(
                "scope",
                error="insufficient_scope",
                expected=list(needed),
                received=list(verified.scopes),
            )
        return CheckedToken(
            token="",  # the token was made for this server and must not be passed on
            client_id=verified.client_id,
            scopes=list(verified.scopes),
            expires_at=int(verified.expires_at.timestamp()),
            resource=self.resource.url,
            subject=verified.subject,
            claims={"iss": verified.issuer},
            approves_by=verified.claims,
            signed_in_at=verified.signed_in_at,
        )

    async def _verified(self, text: str, *, sender: str) -> Verified:
        try:
            key_id = key_id_of(text)
        except BadBearer as refusal:
            if refusal.reason != "opaque" or self._introspection is None:
                raise
            return await self._introspection.verified(text, sender=sender)
        keys = await self._keys(key_id)
        return verify(text, resource=self.resource, keys=keys, now=self._clock())


def one_in(scope: Mapping[str, Any], header: bytes) -> str | None:
    """Return the value of a header, or None if the header is missing.

    Raises BadBearer for several headers, or for an access token in the URL, because logs store
    URLs.
    """
    query = scope.get("query_string", b"").decode("latin-1")
    try:
        names = [key for key, _ in parse_qsl(query, True, max_num_fields=_FIELDS_AT_MOST)]
    except ValueError:
        raise BadBearer("too many parameters", error="invalid_request") from None
    if "access_token" in names:
        raise BadBearer("token in the address", error="invalid_request")
    found = facts_of(scope).headers.get(header, [])
    if len(found) > 1:
        raise BadBearer("several headers", error="invalid_request")
    return found[0] if found else None


def subject_of(token: AccessToken, identity: Identity, *, issuer: str) -> Subject:
    """Return the subject of a checked token. `issuer` is used if the token names none."""
    claims = token.claims or {}
    subject = Subject(
        issuer=str(claims.get("iss") or issuer), subject=token.subject, client_id=token.client_id
    )
    if isinstance(token, CheckedToken):
        return replace(subject, claims=token.approves_by, signed_in_at=token.signed_in_at)
    return identity.as_on_our_pages(subject, claims)


def log_refusal(refusal: BadBearer) -> None:
    """Log a refusal with what was checked, expected and received, but without the token."""
    about = {"why": refusal.reason, "expected": refusal.expected, "came": refusal.received}
    if refusal.reason == "opaque":
        about["do"] = (
            "have the issuer make JWT access tokens for this audience (RFC 9068), or set "
            "ELICIT_INTROSPECT=1"
        )
    level = logging.WARNING if refusal.expected is not None else logging.INFO
    _log.log(level, "bearer.refused", extra={k: v for k, v in about.items() if v is not None})
