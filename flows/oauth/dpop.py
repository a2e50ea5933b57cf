"""DPoP: a proof with each request that the sender has the key of its tokens (RFC 9449).

Risks: a stolen access token works for anyone. With DPoP, a token works only together with a private
key. Each account has its own key, and the key never leaves the server. A proof is valid for one
method and one address, and has its own id. Another risk is a server that asks for a new nonce again
and again. A request is therefore repeated at most once.
"""

import hashlib
import secrets
from base64 import urlsafe_b64encode
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import httpx
import msgspec

from flows.oauth.responses import object_in

if TYPE_CHECKING:
    from joserfc.jwk import ECKey

ALGORITHM: Final = "ES256"
HEADER: Final = "DPoP"
USE_NONCE: Final = "use_dpop_nonce"
# Errors with which a server says that it requires a proof, or did not accept one (RFC 9449, 12.2).
ERRORS: Final = frozenset({USE_NONCE, "invalid_dpop_proof"})
_NONCE_AT_MOST: Final = 1024
_JTI_BYTES: Final = 16


def new_key() -> str:
    """Return a new private key as the text of a JWK."""
    from joserfc.jwk import ECKey  # noqa: PLC0415 - webapp.client needs none of it

    key = ECKey.generate_key("P-256")
    return msgspec.json.encode(key.as_dict(private=True)).decode()


def thumbprint_of(key: str) -> str:
    """Return the hash of the public key, for the `dpop_jkt` of an authorization request."""
    return str(_imported(key).thumbprint())


def proof_of(
    key: str,
    *,
    method: str,
    url: httpx.URL,
    now: datetime,
    nonce: str | None = None,
    token: str | None = None,
) -> str:
    """Return the proof for one request, bound to its access token if there is one."""
    from joserfc import jwt  # noqa: PLC0415 - webapp.client needs none of it

    private = _imported(key)
    claims: dict[str, Any] = {
        "jti": secrets.token_urlsafe(_JTI_BYTES),
        "htm": method,
        "htu": str(url.copy_with(query=None, fragment=None)),
        "iat": int(now.timestamp()),
    }
    if nonce is not None:
        claims["nonce"] = nonce
    if token is not None:
        digest = hashlib.sha256(token.encode()).digest()
        claims["ath"] = urlsafe_b64encode(digest).rstrip(b"=").decode()
    header = {"typ": "dpop+jwt", "alg": ALGORITHM, "jwk": private.as_dict(private=False)}
    return jwt.encode(header, claims, private, algorithms=[ALGORITHM])


def wanted_nonce(reply: httpx.Response) -> str | None:
    """Return the nonce that a refusal asks for (RFC 9449, 8 and 9), or None."""
    nonce = str(reply.headers.get("dpop-nonce", ""))
    if not 0 < len(nonce) <= _NONCE_AT_MOST or not nonce.isascii() or not nonce.isprintable():
        return None
    if reply.status_code == 401 and USE_NONCE in reply.headers.get("www-authenticate", ""):
        return nonce
    is_refusal = reply.status_code in (400, 401)
    return nonce if is_refusal and (object_in(reply) or {}).get("error") == USE_NONCE else None


def _imported(key: str) -> "ECKey":
    from joserfc.jwk import ECKey  # noqa: PLC0415 - webapp.client needs none of it

    return ECKey.import_key(msgspec.json.decode(key, type=dict[str, str | list[str]]))
