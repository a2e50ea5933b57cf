"""Valid and invalid access tokens, signed like those of an issuer."""

from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey
from joserfc.jws import JWSRegistry

from flows.oauth.access_token import BadBearer, Resource, Verified, verify
from tests.support.clock import NOON

ISSUER = "https://login.example"
HERE = "https://tools.example/mcp"
NOW = int(NOON.timestamp())
KEY = ECKey.generate_key("P-256", parameters={"kid": "one"})
RSA = RSAKey.generate_key(2048, parameters={"kid": "two"})
KEYS = [KEY.as_dict(private=False), RSA.as_dict(private=False)]
RESOURCE = Resource(url=HERE, issuer=ISSUER)
ENTRA = ("oid", "tid")


def claims_of(**changes: Any) -> dict[str, Any]:
    """Return the claims of a valid token with `changes` applied. None removes a claim."""
    claims: dict[str, Any] = {
        "iss": ISSUER,
        "sub": "alice",
        "aud": HERE,
        "client_id": "an assistant",
        "scope": "tools more",
        "iat": NOW,
        "exp": NOW + 300,
        **changes,
    }
    return {name: value for name, value in claims.items() if value is not None}


def token(
    *,
    key: Any = KEY,
    alg: str = "ES256",
    header: dict[str, Any] | None = None,
    **changes: Any,
) -> str:
    """Return a signed token with `changes` applied to its claims."""
    registry = JWSRegistry(algorithms=[alg], strict_check_header=False)
    token_header = {"alg": alg, "kid": key.kid, "typ": "at+jwt", **(header or {})}
    token_header = {name: value for name, value in token_header.items() if value is not None}
    return jwt.encode(token_header, claims_of(**changes), key, registry=registry, default_type=None)


def read(text: str, resource: Resource = RESOURCE) -> Verified:
    return verify(text, resource=resource, keys=KEYS, now=NOON)


def refusal(text: str, resource: Resource = RESOURCE) -> str:
    with pytest.raises(BadBearer) as refused:
        read(text, resource)
    assert refused.value.http_status == 401
    assert refused.value.error == "invalid_token"
    assert refused.value.reason not in str(refused.value)
    return refused.value.reason
