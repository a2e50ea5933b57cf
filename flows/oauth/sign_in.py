"""Signing in on our pages, at the issuer whose access tokens the callers bring.

What could go wrong is what could go wrong with any authorisation code
(flows.oauth.authorization_code): PKCE, nonce, `iss`, a state that this browser alone holds. And one
thing more: a person who signs in must come out as the same subject as their access token says, so
both are read by one rule (`subject_of`).
"""

import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import cast

import msgspec

from flows.elicitation.flow import CallbackParams, Redirect, Talk
from flows.elicitation.states import Json
from flows.errors import Failed
from flows.oauth.access_token import SUBJECT_CLAIM, claim_marks, subject_of
from flows.oauth.authorization_code import (
    NONCE_BYTES,
    VERIFIER_BYTES,
    Mixed,
    code_in,
    exchange,
    named_person,
    proven_claims,
    single,
)
from flows.oauth.discovery import Metadata
from flows.oauth.provider import Client
from flows.oauth.requests import ask, auth_of, authorize_url
from flows.oauth.token_errors import tokens_in

SCOPES = ("openid", "profile")
STATE_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedIn:
    """Who is at the browser. The label is for people and compared with nothing.

    `claims` are those that were signed and somebody goes by here, each as `claim_mark` has it.
    """

    issuer: str
    subject: str
    label: str
    claims: tuple[str, ...] = ()


class Leaving(msgspec.Struct, frozen=True, kw_only=True):
    """What the browser keeps, sealed, until it is back."""

    state: str
    nonce: str
    verifier: str

    def __repr__(self) -> str:
        return "Leaving(***)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignIn:
    """The way to the issuer and back; `client` is our registration there.

    `redirect_uri` belongs to sign-in alone. `metadata` is what the issuer says of itself now.
    `scopes` are asked for beside what every sign-in asks for, `wanted` are the claims, with a value
    each, by which more is known of a person than who they are.
    """

    client: Client
    redirect_uri: str
    claim: tuple[str, ...] = SUBJECT_CLAIM
    scopes: tuple[str, ...] = ()
    wanted: frozenset[tuple[str, str]] = frozenset()

    def begin(self, metadata: Metadata, *, switches: bool = False) -> Redirect:
        """Where the browser goes; `kept` is for this browser alone, and not for its scripts.

        `switches` lets the person choose who to be, where the provider's declaration says how.
        """
        leaving = Leaving(
            state=secrets.token_urlsafe(STATE_BYTES),
            nonce=secrets.token_urlsafe(NONCE_BYTES),
            verifier=secrets.token_urlsafe(VERIFIER_BYTES),
        )
        url = authorize_url(
            self.client,
            place=metadata.authorize,
            redirect_uri=self.redirect_uri,
            scopes=self.client.provider.asks((*SCOPES, *self.scopes)),
            state=leaving.state,
            verifier=leaving.verifier,
            nonce=leaving.nonce,
            switches=switches,
        )
        return Redirect(url=url, kept=cast("Json", msgspec.to_builtins(leaving)))

    def finish(
        self, arrival: CallbackParams, *, kept: Json, metadata: Metadata, now: datetime
    ) -> Talk[SignedIn]:
        """Exchange the code, once, and see who it is.

        Raises Mixed where nothing may be done, Denied for the person's no, Failed for the rest.
        """
        provider = self.client.provider
        leaving = _left(kept)
        code = self._code(arrival, leaving, metadata)
        request = exchange(
            self.client,
            place=metadata.token,
            code=code,
            redirect_uri=self.redirect_uri,
            verifier=leaving.verifier,
            client_auth=auth_of(metadata.client_auths),
        )
        granted = tokens_in((yield from ask(request, provider)), provider, now=now)
        if metadata.jwks is None:
            raise Failed(f"{provider.label} does not publish the keys that it signs with.")
        assert provider.issuer is not None
        claims = yield from proven_claims(
            granted,
            self.client,
            jwks=metadata.jwks,
            issuer=provider.issuer,
            nonce=leaving.nonce,
            now=now,
        )
        token = granted.tokens.access_token
        person = yield from named_person(claims, provider, userinfo=metadata.userinfo, token=token)
        # What userinfo adds is for the label only: the subject is in what was signed.
        subject = subject_of(claims, claim=self.claim)
        if subject is None or person is None:
            raise Failed(f"{provider.label} did not say who signed in.")
        return SignedIn(
            issuer=provider.issuer,
            subject=subject,
            label=person.label,
            claims=claim_marks(claims, self.wanted),
        )

    def _code(self, arrival: CallbackParams, leaving: Leaving, metadata: Metadata) -> str:
        """The code that this browser brought, if it is an answer to what it left with."""
        provider = self.client.provider
        state = single(arrival)["state"] or ""
        if not hmac.compare_digest(state.encode("utf-8", "replace"), leaving.state.encode()):
            raise Mixed("the state is not this browser's")
        return code_in(
            arrival,
            provider,
            issuer=provider.issuer,
            sends_issuer=metadata.sends_issuer or provider.sends_issuer,
            denied=f"You did not sign in at {provider.label}.",
        )


def _left(kept: Json) -> Leaving:
    try:
        return msgspec.convert(kept, Leaving)
    except msgspec.ValidationError:
        raise Mixed("this browser did not leave") from None
