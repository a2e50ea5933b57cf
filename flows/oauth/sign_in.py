"""Sign-in to the server's pages at the issuer that also issues the callers' access tokens.

Risks: the same as for any authorization code (see flows.oauth.authorization_code). The sign-in
therefore uses PKCE, a nonce, `iss`, and a state that only this browser has. In addition, a sign-in
and the same person's access token could have different subjects, so both are read by `subject_of`.

The issuer reports sign-outs (OpenID Connect Back-Channel Logout 1.0). Risks: somebody signs other
people out with a token that the issuer made for something else, for somebody else, or long ago. A
logout token must therefore be signed with a key of this issuer, name this server's registration as
its only audience, be minutes old, and have the member of `events` that only logout tokens have. An
ID token has a nonce, which no logout token may have.
"""

import hmac
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec

from flows.elicitation.flow import CallbackParams, Redirect, Talk
from flows.elicitation.states import Json
from flows.errors import Failed
from flows.oauth.access_token import SUBJECT_CLAIM, BadBearer, claim_marks, key_id_of, subject_of
from flows.oauth.authorization_code import (
    NONCE_BYTES,
    VERIFIER_BYTES,
    Mixed,
    code_in,
    exchange,
    proven_claims,
    single,
)
from flows.oauth.discovery import Metadata
from flows.oauth.dpop import new_key
from flows.oauth.id_token import (
    ALGORITHMS,
    LEEWAY_SECONDS,
    has_valid_times,
    is_for,
    is_of_tenant,
    named_person,
    signed_claims,
    unsigned_claims,
)
from flows.oauth.provider import Client, Provider
from flows.oauth.pushed_request import address_to_leave_to
from flows.oauth.requests import ApiAccess, SetupFault, authorize_parameters
from flows.oauth.token_errors import tokens_in

SCOPES = ("openid", "profile")
STATE_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedIn:
    """The person who signed in. `label` is for people and never compared.

    `claims` are the marks (`claim_mark`) of the wanted claims in the signed id_token. `sub` and
    `sid` are the names that the issuer uses when it reports that the session ended.
    """

    issuer: str
    subject: str
    label: str
    claims: tuple[str, ...] = ()
    sub: str = ""
    sid: str = ""
    id_token: str = field(default="", repr=False)


class Unnamed(SetupFault):
    """The ID token lacks a claim by which this server identifies people."""


class Leaving(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a sign-in, encrypted in the browser's cookie until it returns."""

    state: str
    nonce: str
    verifier: str

    def __repr__(self) -> str:
        return "Leaving(***)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignIn:
    """The sign-in flow at the issuer; `client` is this server's registration there.

    `redirect_uri` is used for sign-in only. `scopes` are requested in addition to SCOPES. `wanted`
    are the (claim, value) pairs, such as roles, to look for in the id_token.
    """

    client: Client
    redirect_uri: str
    claim: tuple[str, ...] = SUBJECT_CLAIM
    scopes: tuple[str, ...] = ()
    wanted: frozenset[tuple[str, str]] = frozenset()

    def begin(self, metadata: Metadata, *, now: datetime, switches: bool = False) -> Talk[Redirect]:
        """Return the redirect to the issuer.

        Store its `attempt_data` in this browser, where scripts cannot read it. `switches` lets the
        person choose another account if the provider's declaration supports that.

        Raises:
            Failed: The issuer refused the request.
        """
        leaving = Leaving(
            state=secrets.token_urlsafe(STATE_BYTES),
            nonce=secrets.token_urlsafe(NONCE_BYTES),
            verifier=secrets.token_urlsafe(VERIFIER_BYTES),
        )
        parameters = authorize_parameters(
            self.client,
            redirect_uri=self.redirect_uri,
            scopes=self.client.provider.scopes_to_request((*SCOPES, *self.scopes)),
            state=leaving.state,
            verifier=leaving.verifier,
            nonce=leaving.nonce,
            switches=switches,
        )
        url = yield from address_to_leave_to(
            self.client,
            metadata,
            parameters,
            client_auth=metadata.client_auth(self.client.provider.client_auth),
            now=now,
        )
        return Redirect(url=url, attempt_data=cast("Json", msgspec.to_builtins(leaving)))

    def finish(
        self, arrival: CallbackParams, *, attempt_data: Json, metadata: Metadata, now: datetime
    ) -> Talk[SignedIn]:
        """Redeem the code, once, and return the person.

        Raises:
            Mixed: The callback must be ignored.
            Denied: The person declined.
            Failed: The issuer did not identify the person.
        """
        provider = self.client.provider
        leaving = _leaving_of(attempt_data)
        code = self._code(arrival, leaving, metadata)
        key = new_key() if provider.dpop else None
        reply = yield from exchange(
            self.client,
            endpoint=metadata.token,
            code=code,
            redirect_uri=self.redirect_uri,
            verifier=leaving.verifier,
            client_auth=metadata.client_auth(provider.client_auth),
            now=now,
            key=key,
        )
        methods = metadata.client_auths
        granted = tokens_in(reply, provider, now=now, is_bound=key is not None, methods=methods)
        if metadata.jwks is None:
            raise Failed(f"{provider.label} does not publish its signing keys.")
        issuer = _issuer_of(granted.id_token, provider)
        claims = yield from proven_claims(
            granted,
            self.client,
            jwks=metadata.jwks,
            issuer=issuer,
            nonce=leaving.nonce,
            now=now,
        )
        person = yield from named_person(
            claims,
            self.client,
            userinfo=metadata.userinfo,
            access=ApiAccess(token=granted.tokens.access_token, key=key, now=now),
            issuer=issuer,
            jwks=metadata.jwks,
        )
        # Userinfo is used for the label only: the subject comes from the signed id_token.
        subject = subject_of(claims, claim=self.claim)
        if subject is None or person is None:
            named = ", ".join(self.claim)
            raise Unnamed(
                f"{provider.label} did not say which person signed in: its ID token has no usable "
                f"{named}.",
                fix=f"let {provider.label} send {named} in ID tokens, or set ELICIT_SUBJECT_CLAIM "
                "(claim in the issuer's table) to claims that it sends",
            )
        return SignedIn(
            issuer=issuer,
            subject=subject,
            label=person.label,
            claims=claim_marks(claims, self.wanted),
            sub=name_in(claims, "sub"),
            sid=name_in(claims, "sid"),
            id_token=granted.id_token or "",
        )

    def end_session(
        self, id_token: str | None, *, state: str, redirect_uri: str
    ) -> Sequence[tuple[str, str]]:
        """Return the parameters with which a session ends at the issuer (RP-Initiated Logout, 2).

        Send them in the body of a form, because addresses with an ID token end up in logs.
        """
        parameters = [
            ("client_id", self.client.client_id),
            ("post_logout_redirect_uri", redirect_uri),
            ("state", state),
        ]
        return parameters if id_token is None else [("id_token_hint", id_token), *parameters]

    def _code(self, arrival: CallbackParams, leaving: Leaving, metadata: Metadata) -> str:
        """Return the code from the callback if its state is this browser's. Raises Mixed."""
        provider = self.client.provider
        fields = single(arrival)
        state = fields["state"] or ""
        if not hmac.compare_digest(state.encode("utf-8", "replace"), leaving.state.encode()):
            raise Mixed("the state is not this browser's")
        return code_in(
            arrival,
            provider,
            issuer=provider.issuer_among(fields["iss"]),
            sends_issuer=metadata.sends_issuer or provider.sends_issuer,
            denied=f"You did not sign in at {provider.label}.",
        )


def _issuer_of(id_token: str | None, provider: Provider) -> str:
    """Return the issuer name that the ID token must have.

    If the issuer has tenants, the name is that of the tenant in the ID token.

    Raises:
        Failed: The people of that tenant may not sign in.
    """
    assert provider.issuer is not None
    if not provider.issuer_tenants:
        return provider.issuer
    claims = (None if id_token is None else unsigned_claims(id_token)) or {}
    if claims.get("iss") not in [*provider.issuers]:
        raise Failed(
            f"{provider.label} sent an ID token of a tenant whose people may not sign in here."
        )
    return str(claims["iss"])


def _leaving_of(stored: Json) -> Leaving:
    try:
        return msgspec.convert(stored, Leaving)
    except msgspec.ValidationError:
        raise Mixed("this browser has no pending sign-in") from None


# Sign-outs that the issuer reports.

EVENT = "http://schemas.openid.net/event/backchannel-logout"
VALID_FOR = timedelta(minutes=10)
NAME_CHARACTERS_AT_MOST = 1024
_TYPES = frozenset({"logout+jwt", "jwt"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LogoutToken:
    """The sessions that have ended at the issuer: session `sid`, or all sessions of person `sub`.

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
    """Verify a logout token with the issuer's `keys`, and return its content.

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
    if not has_valid_times(claims, now=now):
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
