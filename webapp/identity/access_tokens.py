"""The verification of people's access tokens, the same for each endpoint (RFC 9068, RFC 7662).

Risks: a second endpoint checks less than the first. `/mcp` and the HTTP API therefore use the same
verifier: the verifier of the issuer where people sign in, or the verifier that the author of the
served server configured (`webapp.server`). The text of a token leaves this module only in a
`SubjectToken`, for a declared exchange.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Protocol
from urllib.parse import parse_qsl

from mcp.server.auth.provider import AccessToken
from pydantic import PrivateAttr

from flows.oauth.access_token import (
    BadBearer,
    Resource,
    TokenUse,
    Verified,
    issuer_in,
    key_id_of,
    verify,
)
from flows.oauth.token_exchange import SubjectToken
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
    _subject_token: SubjectToken | None = PrivateAttr(default=None)

    @property
    def subject_token(self) -> SubjectToken | None:
        """The token itself, for a declared exchange; None if it names no person."""
        return self._subject_token

    def with_text(self, text: str, *, claim: tuple[str, ...]) -> "CheckedToken":
        issuer = str((self.claims or {})["iss"])
        if self.subject is not None:
            self._subject_token = SubjectToken(
                text=text, issuer=issuer, subject=self.subject, claim=claim
            )
        return self


class Verifier(Protocol):
    """The protocol of a verifier of access tokens."""

    @property
    def issuer(self) -> str:
        """The issuer of tokens that name no issuer."""
        ...

    async def verify(self, text: str, *, sender: str, use: TokenUse | None = None) -> AccessToken:
        """Verify a token from the client address `sender`.

        Without `use`, the token must allow tool calls. Raises BadBearer, or Failed if the
        token cannot be verified at the moment.
        """
        ...


class IssuerTokens:
    """A Verifier for tokens that the sign-in issuer created for this server.

    `others` are the verifiers of further issuers. The exact issuer name in a token selects the
    verifier, and each verifier has its own keys, algorithms, audiences and claims.
    """

    def __init__(
        self,
        issuer: Issuer,
        *,
        resource: Resource,
        clock: Clock,
        introspection: Introspection | None = None,
        others: Sequence["IssuerTokens"] = (),
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
        self.at = issuer
        self._clock = clock
        self.introspection = introspection
        self.others = others

    @cached_property
    def resources(self) -> Mapping[str, tuple["IssuerTokens", Resource]]:
        """The verifier and the resource for each issuer name that can occur in a token."""
        return {
            name: (one, replace(one.resource, issuer=name, tenant=tenant))
            for one in (self, *self.others)
            for name, tenant in one.at.provider.issuers.items()
        }

    @property
    def advertised(self) -> tuple[str, ...]:
        """The scopes that clients should request."""
        all_scopes = (scope for one in (self, *self.others) for scope in one.resource.advertised)
        return tuple(dict.fromkeys(all_scopes))

    async def verify(self, text: str, *, sender: str, use: TokenUse | None = None) -> CheckedToken:
        one, resource = self._chosen(text)
        verified = await one.verified(text, resource=resource, sender=sender)
        return _checked(verified, resource, use=use).with_text(text, claim=resource.claim)

    def _chosen(self, text: str) -> tuple["IssuerTokens", Resource]:
        """Return the verifier for a token, by the exact issuer in it. Raises BadBearer."""
        if len(self.resources) == 1:
            return next(iter(self.resources.values()))
        try:
            issuer = issuer_in(text)
        except BadBearer as refusal:
            if refusal.reason != "opaque":
                raise
            asked = [one for one in self.resources.values() if one[0].introspection is not None]
            return asked[0] if asked else next(iter(self.resources.values()))
        if issuer is None or issuer not in self.resources:
            raise BadBearer("issuer", expected=[*self.resources])
        return self.resources[issuer]

    async def verified(self, text: str, *, resource: Resource, sender: str) -> Verified:
        """Verify a token of this issuer. Raises the same errors as `verify`."""
        try:
            key_id = key_id_of(text, algorithms=resource.algorithms)
        except BadBearer as refusal:
            if refusal.reason != "opaque" or self.introspection is None:
                raise
            return await self.introspection.verified(text, sender=sender)
        keys = await self.at.keys(key_id)
        keys = self.at.provider.keys_from(keys, issuer=resource.issuer)
        return verify(text, resource=resource, keys=keys, now=self._clock())


def _checked(verified: Verified, resource: Resource, *, use: TokenUse | None) -> CheckedToken:
    """Return the token if its audience and scopes allow the use. Raises BadBearer."""
    is_for_calls, needed = resource.takes(verified), resource.scopes
    if use is not None and use.resource in verified.made_for:
        needed = ()  # the resource's scopes apply only to tool calls
    elif use is not None and not (is_for_calls and use.scope in verified.scopes):
        raise use.refused(received=list(verified.made_for))
    elif not is_for_calls:
        expected = [resource.url, *resource.audiences]
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
        resource=resource.url,
        subject=verified.subject,
        claims={"iss": verified.issuer},
        approves_by=verified.claims,
        signed_in_at=verified.signed_in_at,
    )


def header_value(scope: Mapping[str, Any], header: bytes) -> str | None:
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
    """Return the subject of a checked token. `issuer` is used if the token names no issuer."""
    claims = token.claims or {}
    subject = Subject(
        issuer=str(claims.get("iss") or issuer), subject=token.subject, client_id=token.client_id
    )
    if isinstance(token, CheckedToken):
        return replace(
            subject,
            claims=token.approves_by,
            signed_in_at=token.signed_in_at,
            expires_at=_end_of(token),
            bearer=token.subject_token,
        )
    return identity.as_on_our_pages(subject, claims)


def _end_of(token: AccessToken) -> datetime | None:
    return None if token.expires_at is None else datetime.fromtimestamp(token.expires_at, UTC)


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
