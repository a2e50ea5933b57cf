"""The identity of a person in OpenID Connect: id_tokens, keys, metadata and userinfo."""

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from joserfc import jwt
from joserfc.jwk import ECKey, KeySet

from flows.oauth.id_token import signed_claims
from webapp.sandbox.authorization.granted import ACCESS_LIFE, Issued, SandboxPerson
from webapp.sandbox.authorization.habits import OIDC
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
        """Return an access token for the person whom these claims of another issuer name."""
        now = self._clock()
        times = {"iat": int(now.timestamp()), "exp": int((now + ACCESS_LIFE).timestamp())}
        claims = {**subject, "aud": audience, **times}
        header = {"alg": _ALGORITHM, "kid": self._key.kid, "typ": "at+jwt"}
        return jwt.encode(header, claims, self._key, algorithms=[_ALGORITHM])

    def claims_in(self, token: str) -> Mapping[str, Any] | None:
        """Return the claims of a token of `exchanged` that has not expired, or None."""
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
        ways_to_say_who = ["client_secret_basic", "client_secret_post"]
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
            "token_endpoint_auth_methods_supported": ways_to_say_who,
            "revocation_endpoint_auth_methods_supported": ways_to_say_who,
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
            "claims_supported": [
                *("iss", "sub", "aud", "exp", "iat", "auth_time", "nonce", "at_hash", "name"),
                *("preferred_username", "picture", "email", "email_verified"),
            ],
        }
