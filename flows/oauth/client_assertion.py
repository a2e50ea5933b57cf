"""Client assertions: a signed JWT proves who the client is, instead of a secret (RFC 7523).

Risks: a stolen assertion is used again, or at another server. So an assertion names one endpoint,
is valid for a minute and has an id of its own. Another risk: the key is wrong, and nobody notices
before a person has consented at the provider. So `key_fault` checks the key when the server starts.
"""

import secrets
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
LIFE: Final = timedelta(minutes=1)
SECRET_BYTES_AT_LEAST: Final = 32  # RFC 7518, 3.2
_JTI_BYTES: Final = 16
_ALGORITHMS: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "EdDSA"}


class Signatures(JWSRegistry):
    """A registry in which EdDSA means Ed25519 alone, as RFC 9864 recommends.

    The registry of joserfc warns at each use of the name EdDSA, which nearly all servers use.
    """

    algorithms: dict[str, Any] = {  # noqa: RUF012
        **JWSRegistry.algorithms,
        "EdDSA": JWSRegistry.algorithms["Ed25519"],
    }


def assertion_of(secret: str, *, client_id: str, audience: str, is_key: bool, now: datetime) -> str:
    """Return an assertion for one request. With `is_key`, `secret` is a private key."""
    key = _private_key(secret) if is_key else OctKey.import_key(secret)
    header = {"typ": "JWT", "alg": _algorithm(key)}
    if key.kid is not None:
        header["kid"] = key.kid
    claims: dict[str, Any] = {
        "iss": client_id,
        "sub": client_id,
        "aud": audience,
        "jti": secrets.token_urlsafe(_JTI_BYTES),
        "iat": int(now.timestamp()),
        "exp": int((now + LIFE).timestamp()),
    }
    return jwt.encode(header, claims, key, registry=Signatures(algorithms=[header["alg"]]))


def algorithm_of(secret: str, *, client_auth: str) -> str:
    """Return the algorithm that signs assertions. The secret must have passed `key_fault`."""
    return _algorithm(_private_key(secret)) if client_auth == "private_key_jwt" else "HS256"


def key_fault(secret: str, *, client_auth: str) -> str | None:
    """Return why the secret cannot sign assertions for this `client_auth`, or None if it can."""
    if client_auth == "client_secret_jwt" and len(secret.encode()) < SECRET_BYTES_AT_LEAST:
        return f"must have at least {SECRET_BYTES_AT_LEAST} bytes, to sign with HS256."
    if client_auth == "private_key_jwt":
        try:
            _private_key(secret)
        except (JoseError, ValueError, TypeError, KeyError):
            return (
                "must be a private key: a JWK in one line, or a PEM with \\n for the end of each "
                "line. Its type must be RSA, EC or Ed25519."
            )
    return None


def _private_key(secret: str) -> Any:
    """Return the key. Raises ValueError or JoseError if the secret is not a private key."""
    kinds: tuple[Any, ...] = (RSAKey, ECKey, OKPKey)
    is_jwk = secret.lstrip().startswith("{")
    value = msgspec.json.decode(secret) if is_jwk else secret.replace("\\n", "\n")
    for kind in kinds:
        try:
            key = kind.import_key(value)
        except (JoseError, ValueError, TypeError, KeyError):
            continue
        if key.is_private and _algorithm(key):
            return key
    raise ValueError("no private key")


def _algorithm(key: Any) -> str:
    if isinstance(key, OctKey):
        return "HS256"
    named = key.alg
    default = "RS256" if isinstance(key, RSAKey) else _ALGORITHMS[key.curve_name]
    return str(named or default)
