"""Signing in on our pages, at the issuer whose access tokens the callers bring.

What could go wrong is what could go wrong with any authorisation code
(flows.oauth.authorization_code): PKCE, nonce, `iss`, a state that this browser alone holds. And one
thing more: a person who signs in must come out as the same subject as their access token says, so
both are read by one rule (`subject_of`).
"""

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import httpx
import msgspec

from flows.elicitation.flow import CallbackParams, Redirect, Talk
from flows.elicitation.states import Json
from flows.errors import Denied, Failed
from flows.oauth.access_token import SUBJECT_CLAIM, subject_of
from flows.oauth.authorization_code import CODE_AT_MOST, NONCE_BYTES, VERIFIER_BYTES, Mixed
from flows.oauth.id_token import person_in, verified_claims
from flows.oauth.provider import Client
from flows.oauth.requests import ask, auth_of, authorize_url, get, post
from flows.oauth.responses import ERROR_CODE, Metadata, keys_of, read_token_reply, read_userinfo

SCOPES = ("openid", "profile")
STATE_BYTES = 16
_ONCE = ("code", "state", "iss", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedIn:
    """Who is at the browser. The label is for people and compared with nothing."""

    issuer: str
    subject: str
    label: str


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
    """

    client: Client
    redirect_uri: str
    claim: tuple[str, ...] = SUBJECT_CLAIM

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
            scopes=self.client.provider.asks(SCOPES),
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
        reply = yield from ask(self._exchange(code, leaving, metadata), provider)
        granted = read_token_reply(reply, provider, now=now)
        if metadata.jwks is None:
            raise Failed(f"{provider.label} does not publish the keys that it signs with.")
        assert provider.issuer is not None
        claims = verified_claims(
            granted.id_token,
            provider=provider,
            client_id=self.client.client_id,
            issuer=provider.issuer,
            nonce=leaving.nonce,
            keys=keys_of((yield from ask(get(metadata.jwks, provider=provider), provider))),
            now=now,
        )
        more = None
        if metadata.userinfo is not None and not _has_label(claims):
            token = granted.tokens.access_token
            request = get(metadata.userinfo, provider=provider, token=token)
            more = read_userinfo((yield from ask(request, provider)), provider)
        # What userinfo adds is for the label only: the subject is in what was signed.
        subject, person = subject_of(claims, claim=self.claim), person_in(claims, more=more)
        if subject is None or person is None:
            raise Failed(f"{provider.label} did not say who signed in.")
        return SignedIn(issuer=provider.issuer, subject=subject, label=person.label)

    def _code(self, arrival: CallbackParams, leaving: Leaving, metadata: Metadata) -> str:
        """The code that this browser brought, if it is an answer to what it left with."""
        provider = self.client.provider
        came = _single(arrival)
        state, issuer = came["state"] or "", came["iss"]
        if not hmac.compare_digest(state.encode("utf-8", "replace"), leaving.state.encode()):
            raise Mixed("the state is not this browser's")
        if issuer is None and (metadata.sends_issuer or provider.sends_issuer):
            raise Mixed("the issuer is missing")
        if issuer not in (None, provider.issuer):
            raise Mixed("another issuer answers")
        if came["error"] is not None:
            raise self._refusal(came["error"], code=came["code"])
        code = came["code"]
        if not code or len(code) > CODE_AT_MOST or not code.isascii() or not code.isprintable():
            raise Mixed("the code is none")
        return code

    def _refusal(self, error: str, *, code: str | None) -> Mixed | Denied | Failed:
        label = self.client.provider.label
        if code is not None:
            return Mixed("both a code and an error")
        if error == "access_denied":
            return Denied(f"You did not sign in at {label}.")
        word = f" ({error})" if ERROR_CODE.fullmatch(error) else ""
        return Failed(f"{label} refused{word}.")

    def _exchange(self, code: str, leaving: Leaving, metadata: Metadata) -> httpx.Request:
        return post(
            self.client,
            place=metadata.token,
            values={
                "grant_type": "authorization_code",
                "code": code,
                "redirect_uri": self.redirect_uri,
                "code_verifier": leaving.verifier,
            },
            client_auth=auth_of(metadata.client_auths),
        )


def _left(kept: Json) -> Leaving:
    try:
        return msgspec.convert(kept, Leaving)
    except msgspec.ValidationError:
        raise Mixed("this browser did not leave") from None


def _single(arrival: CallbackParams) -> Mapping[str, str | None]:
    for name in _ONCE:
        if len(arrival.all(name)) > 1:
            raise Mixed(f"{name} comes more than once")
    return {name: next(iter(arrival.all(name)), None) for name in _ONCE}


def _has_label(claims: Mapping[str, Any]) -> bool:
    return any(claims.get(name) for name in ("email", "preferred_username", "name"))
