"""Responses that a middleware sends itself, before any framework handles the request."""

import json
from collections.abc import Mapping
from http import HTTPStatus

from webapp.http.connection import Send

_COMMON = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


async def send_answer(
    send: Send,
    status: HTTPStatus,
    body: bytes,
    headers: Mapping[str, str],
    *,
    is_head: bool = False,
    prefix: str = "",
) -> None:
    """Send a full response, without the body for HEAD. `prefix` precedes ASGI's message types."""
    sent = {**_COMMON, "content-length": str(len(body)), **headers}
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in sent.items()]
    start = {"type": f"{prefix}http.response.start", "status": int(status), "headers": pairs}
    await send(start)
    await send({"type": f"{prefix}http.response.body", "body": b"" if is_head else body})


def problem(status: HTTPStatus, *, detail: str, code: str) -> bytes:
    """Return a problem document (RFC 9457), sent as application/problem+json."""
    about = {"type": "about:blank", "title": status.phrase, "status": int(status)}
    return json.dumps({**about, "detail": detail, "code": code}).encode()
