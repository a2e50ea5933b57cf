"""What a layer around the application answers by itself, where no framework has a say yet."""

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
    """The whole answer; of one to HEAD the body stays here. `prefix` is a websocket's."""
    sent = {**_COMMON, "content-length": str(len(body)), **headers}
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in sent.items()]
    start = {"type": f"{prefix}http.response.start", "status": int(status), "headers": pairs}
    await send(start)
    await send({"type": f"{prefix}http.response.body", "body": b"" if is_head else body})


def problem(status: HTTPStatus, *, detail: str, code: str) -> bytes:
    """RFC 9457; it goes out as application/problem+json."""
    about = {"type": "about:blank", "title": status.phrase, "status": int(status)}
    return json.dumps({**about, "detail": detail, "code": code}).encode()
