"""An OpenID provider that authlib's authorization server simulates, without a network."""

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

import httpx
from authlib.oauth2.rfc6749 import AuthorizationServer, OAuth2Error, OAuth2Request  # type: ignore[import-untyped]
from authlib.oauth2.rfc6749 import grants as authlib_grants
from authlib.oauth2.rfc6749.requests import BasicOAuth2Payload  # type: ignore[import-untyped]
from authlib.oauth2.rfc7009 import RevocationEndpoint  # type: ignore[import-untyped]
from authlib.oauth2.rfc7636 import CodeChallenge  # type: ignore[import-untyped]
from authlib.oauth2.rfc9068 import JWTBearerTokenGenerator  # type: ignore[import-untyped]
from authlib.oidc.core import OpenIDCode  # type: ignore[import-untyped]
from authlib.oidc.core import UserInfo as Claims
from joserfc.jwk import ECKey, KeySet

ISSUER = "https://authlib.example"
_KEY = ECKey.generate_key("P-256", {"kid": "one", "use": "sig", "alg": "ES256"})
_SECONDS = 3600


@dataclass(kw_only=True)
class _User:
    id: str

    def get_user_id(self) -> str:
        return self.id


@dataclass(kw_only=True)
class _Client:
    """The registration of the server under test."""

    id: str
    secret: str = field(repr=False)

    def get_client_id(self) -> str:
        return self.id

    def get_allowed_scope(self, scope: str) -> str:
        return scope

    def check_redirect_uri(self, uri: str) -> bool:
        return uri.startswith("http://127.0.0.1:")

    def check_client_secret(self, secret: str) -> bool:
        return secrets.compare_digest(self.secret, secret)

    def check_endpoint_auth_method(self, method: str, _: str) -> bool:
        return method in ("client_secret_basic", "client_secret_post")

    def check_response_type(self, kind: str) -> bool:
        return kind == "code"

    def check_grant_type(self, kind: str) -> bool:
        return kind in ("authorization_code", "refresh_token")


@dataclass(kw_only=True)
class _Row:
    """A stored code or token, with the accessors that authlib expects of a database row."""

    values: Mapping[str, Any]
    user: _User
    is_revoked: bool = False

    def get_redirect_uri(self) -> str:
        return str(self.values["redirect_uri"])

    def get_scope(self) -> str:
        return str(self.values["scope"])

    def get_nonce(self) -> str | None:
        return self.values.get("nonce")

    def get_auth_time(self) -> int:
        return int(self.values["auth_time"])

    def get_acr(self) -> None:
        return None

    def get_amr(self) -> None:
        return None

    def check_client(self, client: _Client) -> bool:
        return bool(self.values["client_id"] == client.id)


class AuthlibServer(AuthorizationServer, httpx.AsyncBaseTransport):  # type: ignore[misc]
    """The server as a transport. `audience` is in the access tokens, which are JWTs (RFC 9068)."""

    def __init__(self, *, client_id: str, secret: str, audience: str = "api") -> None:
        super().__init__(scopes_supported=["openid", "profile", "offline_access"])
        self.client, self.audience = _Client(id=client_id, secret=secret), audience
        self.codes: dict[str, _Row] = {}
        self.tokens: list[_Row] = []
        generator = _Tokens(self)
        self.register_token_generator("default", generator)
        self.register_grant(_CodeGrant, [_OpenId(), CodeChallenge(required=True)])
        self.register_grant(_RefreshGrant)
        self.register_endpoint(_Revocations)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        match request.url.path:
            case "/.well-known/openid-configuration":
                return httpx.Response(200, json=_METADATA)
            case "/jwks":
                return httpx.Response(200, json={"keys": [_KEY.as_dict(private=False)]})
            case "/authorize":
                return self.authorized(str(request.url), None)
            case "/token":
                return self.create_token_response(request)  # type: ignore[no-any-return]
            case "/revoke":
                return self.create_endpoint_response("revocation", request)  # type: ignore[no-any-return]
            case _:
                return httpx.Response(404)

    def authorized(self, url: str, user: str | None) -> httpx.Response:
        """Answer an authorization request, which `user` grants. None grants nothing."""
        person = None if user is None else _User(id=user)
        request = httpx.Request("GET", url)
        try:
            grant = self.get_consent_grant(request, end_user=person)
        except OAuth2Error as error:
            return self.handle_error_response(request, error)  # type: ignore[no-any-return]
        return self.create_authorization_response(request, person, grant=grant)  # type: ignore[no-any-return]

    def query_client(self, client_id: str) -> _Client | None:
        return self.client if client_id == self.client.id else None

    def save_token(self, token: Mapping[str, Any], request: Any) -> None:
        values = {**token, "client_id": request.client.id}
        self.tokens.append(_Row(values=values, user=request.user))

    def token_of(self, text: str, member: str) -> _Row | None:
        return next((one for one in self.tokens if one.values.get(member) == text), None)

    def create_oauth2_request(self, request: httpx.Request) -> OAuth2Request:
        made = OAuth2Request(request.method, str(request.url), headers=request.headers)
        form = dict(parse_qsl(request.content.decode()))
        made.payload = BasicOAuth2Payload({**request.url.params, **form})
        made._body = form
        return made

    def handle_response(self, status: int, body: Any, headers: Any) -> httpx.Response:
        text = json.dumps(body) if isinstance(body, dict) else body
        return httpx.Response(status, text=text, headers=dict(headers))

    def send_signal(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Ignore the signals of authlib's integrations."""


class _CodeGrant(authlib_grants.AuthorizationCodeGrant):  # type: ignore[misc]
    TOKEN_ENDPOINT_AUTH_METHODS = ("client_secret_basic", "client_secret_post")

    def save_authorization_code(self, code: str, request: Any) -> None:
        now = int(time.time())
        values = {**request.payload.data, "scope": request.scope, "auth_time": now}
        self.server.codes[code] = _Row(values=values, user=request.user)

    def query_authorization_code(self, code: str, client: _Client) -> _Row | None:
        found: _Row | None = self.server.codes.get(code)
        if found is not None:
            vars(found).update({name: found.values.get(name) for name in _CHALLENGE})
        return found if found is not None and found.check_client(client) else None

    def delete_authorization_code(self, row: _Row) -> None:
        codes = self.server.codes
        for code in [code for code, stored in codes.items() if stored is row]:
            del codes[code]

    def authenticate_user(self, row: _Row) -> _User:
        return row.user


class _RefreshGrant(authlib_grants.RefreshTokenGrant):  # type: ignore[misc]
    """Refresh tokens that work once."""

    TOKEN_ENDPOINT_AUTH_METHODS = ("client_secret_basic", "client_secret_post")
    INCLUDE_NEW_REFRESH_TOKEN = True

    def authenticate_refresh_token(self, text: str) -> _Row | None:
        found: _Row | None = self.server.token_of(text, "refresh_token")
        return None if found is None or found.is_revoked else found

    def authenticate_user(self, row: _Row) -> _User:
        return row.user

    def revoke_old_credential(self, row: _Row) -> None:
        row.is_revoked = True


class _Revocations(RevocationEndpoint):  # type: ignore[misc]
    CLIENT_AUTH_METHODS = ("client_secret_basic", "client_secret_post")

    def query_token(self, text: str, _: str | None) -> _Row | None:
        server = self.server
        found: _Row | None = server.token_of(text, "refresh_token")
        return found or server.token_of(text, "access_token")

    def revoke_token(self, row: _Row, _: Any) -> None:
        row.is_revoked = True


class _OpenId(OpenIDCode):  # type: ignore[misc]
    def exists_nonce(self, *_: Any) -> bool:
        return False

    def resolve_client_private_key(self, _: Any) -> ECKey:
        return _KEY

    def get_client_algorithm(self, _: Any) -> str:
        return "ES256"

    def get_client_claims(self, client: _Client) -> dict[str, Any]:
        return {"iss": ISSUER, "aud": [client.id], "exp": int(time.time()) + _SECONDS}

    def get_encode_header(self, _: Any) -> dict[str, str]:
        return {"alg": "ES256", "kid": "one"}

    def get_compatible_claims(self, request: Any) -> dict[str, Any]:
        return {**self.get_client_claims(request.client), "iat": int(time.time())}

    def generate_user_info(self, user: _User, _: str) -> Any:
        return Claims(sub=user.id, name=user.id.title())


class _Tokens(JWTBearerTokenGenerator):  # type: ignore[misc]
    def __init__(self, server: AuthlibServer) -> None:
        super().__init__(ISSUER, alg="ES256", refresh_token_generator=_refresh_token)
        self.server = server

    def get_jwks(self) -> KeySet:
        return KeySet([_KEY])

    def get_audiences(self, *_: Any) -> str:
        return self.server.audience


def _refresh_token(*_: Any, **__: Any) -> str:
    return secrets.token_urlsafe(24)


_CHALLENGE = ("code_challenge", "code_challenge_method")
_METADATA = {
    "issuer": ISSUER,
    "authorization_endpoint": f"{ISSUER}/authorize",
    "token_endpoint": f"{ISSUER}/token",
    "revocation_endpoint": f"{ISSUER}/revoke",
    "jwks_uri": f"{ISSUER}/jwks",
    "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
    "id_token_signing_alg_values_supported": ["ES256"],
    "subject_types_supported": ["public"],
}
