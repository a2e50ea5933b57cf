"""An issuer whose replies are compressed twice must not fill the server's memory."""

import gzip
import json
import tempfile
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from pathlib import Path

import httpx

from tests.support.cli import serving
from tests.support.serving import serving_at
from webapp.http.exchange import ASGIApp, Receive, Scope, Send

FINDING = "S9"
UNPACKED_BYTES = 512 * 1024 * 1024
MEMORY_AT_MOST = 64 * 1024  # kB by which the server's memory may grow


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    packed = gzip.compress(gzip.compress(b" " * UNPACKED_BYTES))
    for _ in range(times):
        for door in ("discovery", "keys"):
            yield f"an issuer's {door}, packed twice", await _is_refused(door, packed)


async def _is_refused(door: str, packed: bytes) -> bool:
    """Return True if the caller was refused and the server's memory stayed within the limit."""
    asked: list[str] = []

    def make(url: str) -> ASGIApp:
        return _issuer(url, door, packed, asked)

    with tempfile.TemporaryDirectory() as folder:
        async with serving_at(make) as issuer:
            extra = {
                "ELICIT_ISSUER": issuer,
                "ELICIT_ISSUER_CLIENT_ID": "id",
                "ELICIT_ISSUER_CLIENT_SECRET": "secret",
            }
            async with (
                serving(home=Path(folder), extra=extra) as server,
                httpx.AsyncClient(timeout=300) as client,
            ):
                before = _most_memory(server.process.pid)
                answer = await client.post(
                    f"{server.url}/mcp",
                    json={"jsonrpc": "2.0", "id": 1, "method": "ping"},
                    headers={"authorization": f"Bearer {_token(issuer, server.url)}"},
                )
                grown = _most_memory(server.process.pid) - before
    return answer.status_code == 503 and door in asked and grown < MEMORY_AT_MOST


def _token(issuer: str, audience: str) -> str:
    """Return a token with an invalid signature. To notice that, the server needs the keys."""
    now = int(time.time())
    head = {"alg": "RS256", "kid": "one", "typ": "at+jwt"}
    claims = {"iss": issuer, "sub": "ada", "aud": f"{audience}/mcp", "client_id": "c"}
    parts = (head, {**claims, "iat": now, "exp": now + 600, "jti": "1"})
    texts = [urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*texts, "A" * 342])


def _issuer(url: str, door: str, packed: bytes, asked: list[str]) -> ASGIApp:
    says = {
        "issuer": url,
        "authorization_endpoint": f"{url}/authorize",
        "token_endpoint": f"{url}/token",
        "jwks_uri": f"{url}/keys",
    }

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        at = "keys" if scope["path"] == "/keys" else "discovery"
        asked.append(at)
        reply = httpx.Response(200, json=says)
        headers, body = [(b"content-type", b"application/json")], reply.content
        if at == door:
            headers, body = [*headers, (b"content-encoding", b"gzip, gzip")], packed
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


def _most_memory(pid: int) -> int:
    """Return the peak memory of the process, in kB."""
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
