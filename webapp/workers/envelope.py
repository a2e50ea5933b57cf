"""The sealed format in which one worker passes an accepted request to another worker.

Risks: the worker that owns the session sees a connection from our own user, so it would treat every
request as local. The envelope therefore carries what only the accepting worker knows: the owner of
the client's socket, the address, whether a proxy was used, and the access token. Creating an
envelope requires the server's secrets. The worker's name and the challenge that it sent over this
connection are sealed in, so an envelope opens at one worker and on one connection only. A copied
envelope is therefore useless, and workers need no list of used envelopes and no trusted clock. The
envelope also contains the key for all further messages on the connection.
"""

import secrets
import struct
from typing import Any, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from msgspec import DecodeError, Struct
from msgspec.msgpack import decode, encode
from starlette.authentication import AuthCredentials

from flows.crypto.tokens import FINGERPRINT_BYTES, NONCE_BYTES, Ring
from webapp.http.address import ROOT_KEY
from webapp.http.exchange import PEER_KEY, PROXIED_KEY, Scope
from webapp.identity.access_tokens import CheckedToken
from webapp.identity.local_peer import Peer, PeerConnection

CHALLENGE_BYTES = 32
_KEY_BYTES = 32
_COUNTER = struct.Struct(">4xQ")
# Copied unchanged. Headers are pairs of bytes, addresses are pairs of a text and a number.
_PLAIN = ("method", "scheme", "http_version", "path", "raw_path", "query_string", ROOT_KEY)
_End = tuple[str, int] | None


class BadEnvelope(Exception):
    """An invalid envelope for this worker and connection. The message is for the log."""


class _Socket(Struct, array_like=True):
    """The owner of the client's connection; see Peer."""

    uid: int | None
    is_gone: bool
    client: _End
    server: _End


class Envelope(Struct, array_like=True):
    """A request without its body."""

    key: bytes
    plain: dict[str, Any]
    headers: list[tuple[bytes, bytes]]
    client: _End
    server: _End
    peer: _Socket | None
    is_proxied: bool
    token: dict[str, Any] | None
    is_checked: bool

    @classmethod
    def of(cls, scope: Scope) -> Self:
        """Build the envelope of a request that this process accepted."""
        user = scope.get("user")
        token = user.access_token if isinstance(user, AuthenticatedUser) else None
        return cls(
            key=secrets.token_bytes(_KEY_BYTES),
            plain={name: scope[name] for name in _PLAIN if name in scope},
            headers=[(bytes(name), bytes(value)) for name, value in scope["headers"]],
            client=_end(scope.get("client")),
            server=_end(scope.get("server")),
            peer=_socket_of(scope),
            is_proxied=bool(scope.get(PROXIED_KEY)),
            token=None if token is None else token.model_dump(mode="json"),
            is_checked=isinstance(token, CheckedToken),
        )

    def scope(self) -> Scope:
        """Return the ASGI scope as the accepting worker's application would have received it."""
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "root_path": "",
            **self.plain,
            "headers": self.headers,
            "client": self.client,
            "server": self.server,
        }
        if self.is_proxied:
            scope[PROXIED_KEY] = True
        if self.peer is not None:
            ends = self.peer.client, self.peer.server
            scope[PEER_KEY] = Peer(
                uid=self.peer.uid,
                is_gone=self.peer.is_gone,
                connection=(
                    PeerConnection(client=ends[0], server=ends[1]) if ends[0] and ends[1] else None
                ),
            )
        if self.token is not None:
            kind = CheckedToken if self.is_checked else AccessToken
            scope["user"] = AuthenticatedUser(kind.model_validate(self.token))
            scope["auth"] = AuthCredentials(scope["user"].scopes)
        return scope

    def seal(self, ring: Ring, *, to: str, challenge: bytes) -> bytes:
        newest, nonce = ring.newest, secrets.token_bytes(NONCE_BYTES)
        return (
            newest
            + nonce
            + _cipher(ring, newest).encrypt(nonce, encode(self), _bound_to(to, challenge))
        )

    @classmethod
    def open(cls, sealed: bytes, ring: Ring, *, to: str, challenge: bytes) -> Self:
        """Decrypt and decode an envelope. Raises BadEnvelope."""
        fingerprint, rest = sealed[:FINGERPRINT_BYTES], sealed[FINGERPRINT_BYTES:]
        try:
            plain = _cipher(ring, fingerprint).decrypt(
                rest[:NONCE_BYTES], rest[NONCE_BYTES:], _bound_to(to, challenge)
            )
            return decode(plain, type=cls)
        except KeyError:
            raise BadEnvelope("it is not sealed with one of this server's secrets") from None
        except (InvalidTag, ValueError, DecodeError):
            raise BadEnvelope("it is forged, or for another worker or connection") from None


class Sealing:
    """Encryption of the messages after the envelope, which proves their order and their sender.

    Each connection has its own key and each message its own number, so no nonce repeats.
    """

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._sent = self._read = 0

    def seal(self, piece: bytes, *, is_answer: bool) -> bytes:
        nonce, self._sent = _COUNTER.pack(self._sent), self._sent + 1
        return self._cipher.encrypt(_sided(nonce, is_answer=is_answer), piece, None)

    def open(self, sealed: bytes, *, is_answer: bool) -> bytes:
        """Decrypt the next message. Raises BadEnvelope for a forged, lost or reordered message."""
        nonce, self._read = _COUNTER.pack(self._read), self._read + 1
        try:
            return self._cipher.decrypt(_sided(nonce, is_answer=is_answer), sealed, None)
        except (InvalidTag, ValueError):
            raise BadEnvelope("a message is forged, missing or out of order") from None


def _sided(nonce: bytes, *, is_answer: bool) -> bytes:
    return bytes([is_answer]) + nonce[1:]


def _cipher(ring: Ring, fingerprint: bytes) -> AESGCM:
    return AESGCM(ring.derive(fingerprint, "envelope between workers"))


def _bound_to(name: str, challenge: bytes) -> bytes:
    return challenge + name.encode()


def _end(end: Any) -> _End:
    return None if not end else (str(end[0]), int(end[1] or 0))


def _socket_of(scope: Scope) -> _Socket | None:
    peer = scope.get(PEER_KEY)
    if not isinstance(peer, Peer):
        return None
    ends = peer.connection
    return _Socket(
        uid=peer.uid,
        is_gone=peer.is_gone,
        client=None if ends is None else ends.client,
        server=None if ends is None else ends.server,
    )
