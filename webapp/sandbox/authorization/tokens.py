"""The token endpoint, and the claims about a person in its tokens (OpenID Connect).

The endpoint exchanges a code or a refresh token for new tokens.
"""

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from joserfc import jwt
from joserfc.jwk import ECKey, KeySet
from litestar import MediaType, Response

from flows.oauth.id_token import signed_claims, unsigned_claims
from webapp.http.parts import AnyRequest
from webapp.sandbox.authorization.granted import (
    ACCESS_LIFE,
    AuthorizationGrants,
    GrantRefused,
    Issued,
    SandboxPerson,
    require_client,
)
from webapp.sandbox.authorization.habits import (
    OIDC,
    TOKEN_FAULTS,
    AuthorizationHabits,
    Faults,
    SimulatedFault,
    SimulatedRefusal,
)
from webapp.sandbox.authorization.requests import Parameters, Repeated
from webapp.sandbox.pages import NO_STORE
from webapp.sandbox.settings import Sandbox

_ALGORITHM = "ES256"
TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105 - a name


class SandboxIdentity:
    """An issuer of signed claims, with a new key for each sandbox."""

    def __init__(self, *, sandbox: Sandbox, clock: Callable[[], datetime]) -> None:
        self._url = sandbox.url
        self._client_id = sandbox.client_id
        self._clock = clock
        self._key = ECKey.generate_key(
            "P-256", {"use": "sig", "alg": _ALGORITHM}, private=True, auto_kid=True
        )

    @property
    def issuer(self) -> str:
        return f"{self._url}{OIDC.issuer}"

    def id_token(self, issued: Issued) -> str:
        """Return a signed id_token (OpenID Connect Core, 2)."""
        family = issued.family
        now = self._clock()
        half = hashlib.sha256(issued.access_token.encode()).digest()[:16]
        claims: dict[str, Any] = {
            "iss": self.issuer,
            "aud": self._client_id,
            "iat": int(now.timestamp()),
            "exp": int((now + ACCESS_LIFE).timestamp()),
            "auth_time": int(family.began_at.timestamp()),
            "at_hash": urlsafe_b64encode(half).rstrip(b"=").decode(),
            **self.claims(family.person, scopes=issued.family.access_scopes),
        }
        if family.nonce is not None:
            claims["nonce"] = family.nonce
        header = {"alg": _ALGORITHM, "kid": self._key.kid}
        return jwt.encode(header, claims, self._key, algorithms=[_ALGORITHM])

    def exchanged(self, subject: Mapping[str, Any], *, audience: str) -> str:
        """Return an access token with these claims, which can be from another issuer."""
        now = self._clock()
        times = {"iat": int(now.timestamp()), "exp": int((now + ACCESS_LIFE).timestamp())}
        claims = {**subject, "aud": audience, **times}
        header = {"alg": _ALGORITHM, "kid": self._key.kid, "typ": "at+jwt"}
        return jwt.encode(header, claims, self._key, algorithms=[_ALGORITHM])

    def claims_in(self, token: str) -> Mapping[str, Any] | None:
        """Return the claims of a token from `exchanged`, or None if it is invalid or expired."""
        claims = signed_claims(token, [self._key.as_dict(private=False)], algorithms=[_ALGORITHM])
        if claims is None or claims["exp"] <= self._clock().timestamp():
            return None
        return claims

    def claims(self, person: SandboxPerson, *, scopes: tuple[str, ...]) -> dict[str, Any]:
        """Return the claims about a person that these scopes allow."""
        claims: dict[str, Any] = {"sub": f"sandbox-{person.number}"}
        if "profile" in scopes:
            claims |= {
                "name": person.name,
                "preferred_username": person.login,
                "picture": f"{self._url}/sandbox.svg",
            }
        if "email" in scopes:
            claims |= {"email": person.email, "email_verified": True}
        return claims

    def keys(self) -> dict[str, Any]:
        """Return the public key as a JSON Web Key Set."""
        return {"keys": KeySet([self._key]).as_dict(private=False)["keys"]}

    def metadata(self) -> dict[str, Any]:
        """Return the provider's metadata (OpenID Connect Discovery, 3, and RFC 8414, 2)."""
        client_auth_methods = ["client_secret_basic", "client_secret_post"]
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self._url}{OIDC.authorize}",
            "token_endpoint": f"{self._url}{OIDC.token}",
            "userinfo_endpoint": f"{self.issuer}/userinfo",
            "jwks_uri": f"{self.issuer}/jwks",
            "revocation_endpoint": f"{self.issuer}/revoke",
            "scopes_supported": list(OIDC.scopes),
            "response_types_supported": ["code"],
            "response_modes_supported": ["query"],
            "grant_types_supported": [
                *("authorization_code", "refresh_token", "client_credentials"),
                TOKEN_EXCHANGE,
            ],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [_ALGORITHM],
            "token_endpoint_auth_methods_supported": client_auth_methods,
            "revocation_endpoint_auth_methods_supported": client_auth_methods,
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
            "claims_supported": [
                *("iss", "sub", "aud", "exp", "iat", "auth_time", "nonce", "at_hash", "name"),
                *("preferred_username", "picture", "email", "email_verified"),
            ],
        }


# The token endpoint.

_REFRESH_LIFE_SECONDS = 184 * 24 * 60 * 60
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - a name
_HUGE_TOKEN_BYTES = 100_000
_TEAM = {"id": "T0SANDBOX", "name": "Sandbox workspace"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxTokens:
    """The token and revocation endpoints of one authorization server."""

    sandbox: Sandbox
    habits: AuthorizationHabits
    grants: AuthorizationGrants
    identity: SandboxIdentity
    faults: Faults

    async def give(self, request: AnyRequest, body: bytes) -> Response[Any]:
        """Reply to a token request, or fail as planned."""
        fault = self.faults.pop(TOKEN_FAULTS)
        if fault is SimulatedFault.SLOW:
            await self.faults.hold(request.receive)
        elif fault is not None:
            return _faulty_response(fault)
        wants_json = "json" in request.headers.get("accept", "")
        try:
            form = self._form(request, body)
            reply = self._exchange(form)
        except GrantRefused as refused:
            return self._refuse(refused, wants_json=wants_json)
        return self._answer(reply, wants_json=wants_json)

    def revoke(self, request: AnyRequest, body: bytes) -> Response[Any]:
        """Revoke a token (RFC 7009). An unknown token is no error."""
        try:
            form = self._form(request, body)
            token = _required(form, "token")
        except GrantRefused as refused:
            return self._refuse(refused, wants_json=True)
        self.grants.revoke(token)
        return Response(b"", media_type=MediaType.TEXT, headers=NO_STORE)

    def _form(self, request: AnyRequest, body: bytes) -> Parameters:
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "application/x-www-form-urlencoded":
            raise GrantRefused(SimulatedRefusal.INVALID_REQUEST, "A form is expected.")
        try:
            form = Parameters(body)
            form.check_unrepeated()
        except Repeated as err:
            raise GrantRefused(SimulatedRefusal.INVALID_REQUEST, str(err)) from err
        except ValueError as err:
            raise GrantRefused(SimulatedRefusal.INVALID_REQUEST, "The body is not a form.") from err
        require_client(request.headers, form, sandbox=self.sandbox)
        return form

    def _exchange(self, form: Parameters) -> dict[str, Any]:
        otherwise = "" if self.habits.needs_types else "authorization_code"
        match form.get("grant_type") or otherwise:
            case "authorization_code":
                issued = self.grants.redeem(
                    _required(form, "code"),
                    redirect_uri=form.get("redirect_uri"),
                    verifier=form.get("code_verifier") or "",
                )
                return self._slack_reply(issued) if self.habits.says_ok else self._reply(issued[0])
            case "refresh_token":
                text = form.get("scope")
                one = self.grants.refresh(
                    _required(form, "refresh_token"),
                    scopes=tuple(text.split()) if text else None,
                )
                says_ok = {"ok": True} if self.habits.says_ok else {}
                return {**says_ok, **self._reply(one)}
            case "client_credentials" if self.habits.is_openid:
                return self._own(form)
            case grant if grant == TOKEN_EXCHANGE and self.habits.is_openid:
                return self._exchanged(form)
            case "":
                raise GrantRefused(SimulatedRefusal.INVALID_REQUEST, "The grant_type is missing.")
            case _:
                raise GrantRefused(
                    SimulatedRefusal.UNSUPPORTED_GRANT_TYPE, "This grant_type is not offered."
                )

    def _own(self, form: Parameters) -> dict[str, Any]:
        """Reply with a token for the client itself, without a person (RFC 6749, 4.4)."""
        scope = form.get("scope")
        claims = {"iss": self.identity.issuer, "sub": self.sandbox.client_id, "scope": scope or ""}
        token = self.identity.exchanged(claims, audience=self.identity.issuer)
        return _bearer(token, **({} if scope is None else {"scope": scope}))

    def _exchanged(self, form: Parameters) -> dict[str, Any]:
        """Reply with a token for the person of the subject token (RFC 8693).

        The subject token's signature is not verified, because the sandbox's people are made up.
        """
        claims = unsigned_claims(_required(form, "subject_token"))
        if claims is None or not isinstance(claims.get("sub"), str):
            raise GrantRefused(SimulatedRefusal.INVALID_REQUEST, "The subject_token names nobody.")
        audience = form.get("audience") or form.get("resource") or self.identity.issuer
        token = self.identity.exchanged(claims, audience=audience)
        return _bearer(token, issued_token_type=_ACCESS_TOKEN)

    def _reply(self, issued: Issued) -> dict[str, Any]:
        reply: dict[str, Any] = {
            "access_token": issued.access_token,
            "token_type": "user" if issued.family.is_for_person else self.habits.token_type,
            "expires_in": int(ACCESS_LIFE.total_seconds()),
            "refresh_token": issued.refresh_token,
            "scope": self.habits.separator.join(issued.family.access_scopes),
        }
        if self.habits.answers_form_encoded:
            reply["refresh_token_expires_in"] = _REFRESH_LIFE_SECONDS
        if self.habits.is_openid and "openid" in issued.family.access_scopes:
            reply["id_token"] = self.identity.id_token(issued)
        return reply

    def _slack_reply(self, issued: list[Issued]) -> dict[str, Any]:
        """Return Slack's reply: the bot's token at the top level, the person's own token nested."""
        reply: dict[str, Any] = {
            "ok": True,
            "app_id": "A0SANDBOX",
            "team": _TEAM,
            "enterprise": None,
            "is_enterprise_install": False,
            "authed_user": {"id": f"U{issued[0].family.person.number}"},
        }
        for one in issued:
            if one.family.is_for_person:
                reply["authed_user"] |= self._reply(one)
            else:
                reply |= {"bot_user_id": "U0SANDBOX", **self._reply(one)}
        return reply

    def _refuse(self, refused: GrantRefused, *, wants_json: bool) -> Response[Any]:
        name = self.habits.error_names[refused.refusal]
        if self.habits.says_ok:
            return self._answer({"ok": False, "error": name}, wants_json=True)
        reply = {"error": name, "error_description": refused.description}
        if self.habits.fails_with_200:
            return self._answer(reply, wants_json=wants_json)
        if refused.refusal is SimulatedRefusal.INVALID_CLIENT:
            headers = {**NO_STORE, "www-authenticate": 'Basic realm="sandbox"'}
            return Response(reply, status_code=HTTPStatus.UNAUTHORIZED, headers=headers)
        return Response(reply, status_code=HTTPStatus.BAD_REQUEST, headers=NO_STORE)

    def _answer(self, reply: Mapping[str, Any], *, wants_json: bool) -> Response[Any]:
        if self.habits.answers_form_encoded and not wants_json:
            return Response(
                urlencode(reply),
                status_code=HTTPStatus.OK,
                media_type="application/x-www-form-urlencoded; charset=utf-8",
                headers=NO_STORE,
            )
        return Response(reply, status_code=HTTPStatus.OK, headers=NO_STORE)


def _bearer(token: str, **more: Any) -> dict[str, Any]:
    life = int(ACCESS_LIFE.total_seconds())
    return {"access_token": token, "token_type": "Bearer", "expires_in": life, **more}


def _faulty_response(fault: SimulatedFault) -> Response[Any]:
    match fault:
        case SimulatedFault.SERVER_ERROR:
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            return Response("Something broke.", status_code=status, media_type=MediaType.TEXT)
        case SimulatedFault.HTML:
            page = "<!doctype html><title>Maintenance</title><p>We are back soon."
            return Response(page, status_code=HTTPStatus.OK, media_type=MediaType.HTML)
        case SimulatedFault.ERROR_WITH_200:
            reply: dict[str, Any] = {"ok": False, "error": "temporarily_unavailable"}
        case SimulatedFault.HUGE_TOKEN:
            reply = {"access_token": "x" * _HUGE_TOKEN_BYTES, "token_type": "bearer"}
        case _:
            reply = {"token_type": "bearer", "scope": ""}
    return Response(reply, status_code=HTTPStatus.OK, headers=NO_STORE)


def _required(form: Parameters, name: str) -> str:
    value = form.get(name)
    if value is None:
        raise GrantRefused(SimulatedRefusal.INVALID_REQUEST, f"The parameter {name} is missing.")
    return value
