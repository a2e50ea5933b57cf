"""Limits for messages to the MCP endpoint: length, number of values and depth.

Risks: the library parses a message on the event loop, validates it there, and names each invalid
value. One message of a few megabytes then blocks all callers for seconds. A message is therefore
checked before it is parsed. Empty lists and objects are the worst case: each has three bytes, but
costs an object to create and perhaps an error to report.
"""

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

from mcp.server.transport_security import DEFAULT_MAX_REQUEST_BODY_SIZE

from webapp.http.connection import Message, Receive

MESSAGE_BYTES_AT_MOST: Final = DEFAULT_MAX_REQUEST_BODY_SIZE
VALUES_AT_MOST: Final = 50_000
DEPTH_AT_MOST: Final = 150
# Also matches a text without an end, so that invalid JSON is scanned only once.
_TEXTS = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_BRACKETS = re.compile(rb"[\[\]{}]")
_TOO_LONG = (
    f"This message is longer than {MESSAGE_BYTES_AT_MOST:,} bytes. Send less at once, or a link to "
    "it."
)
_TOO_DEEP = f"This message is nested more than {DEPTH_AT_MOST} deep. Send flatter arguments."
_TOO_MANY = f"This message has more than {VALUES_AT_MOST:,} values. Send fewer at once."


class TooLarge(Exception):
    """A message that is above a limit. `status` is the HTTP status of the error response."""

    def __init__(self, why: str, status: HTTPStatus = HTTPStatus.REQUEST_ENTITY_TOO_LARGE) -> None:
        super().__init__(why)
        self.status = status


async def read_message(headers: Mapping[bytes, Sequence[str]], receive: Receive) -> Receive:
    """Read a request's body up to the limits, and return a `receive` that begins with it.

    Raises TooLarge.
    """
    length = next(iter(headers.get(b"content-length", ())), "")
    if length.isascii() and length.isdecimal() and int(length) > MESSAGE_BYTES_AT_MOST:
        raise TooLarge(_TOO_LONG)
    body, begun = bytearray(), list[Message]()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            begun.append(message)
            break
        body += message.get("body", b"")
        if len(body) > MESSAGE_BYTES_AT_MOST:
            raise TooLarge(_TOO_LONG)
        if not message.get("more_body", False):
            break
    if has_too_many_values(bytes(body)):
        raise TooLarge(_TOO_MANY)
    if is_nested_too_deep(bytes(body)):
        raise TooLarge(_TOO_DEEP, HTTPStatus.BAD_REQUEST)
    begun.insert(0, {"type": "http.request", "body": bytes(body), "more_body": bool(begun)})

    async def again() -> Message:
        return begun.pop(0) if begun else await receive()

    return again


def has_too_many_values(text: bytes) -> bool:
    """Return True if JSON has more values than allowed. The count is exact for valid UTF-8 only."""
    if _marks(text) <= VALUES_AT_MOST:
        return False
    if b"\0" in text:
        return True
    text = _TEXTS.sub(b"0", text)
    return _marks(text) - text.count(b"[]") - text.count(b"{}") > VALUES_AT_MOST


def is_nested_too_deep(text: bytes) -> bool:
    """Return True if the JSON is nested deeper than DEPTH_AT_MOST.

    Up to that depth, the library reads the message in every protocol revision.
    """
    if text.count(b"[") + text.count(b"{") <= DEPTH_AT_MOST:
        return False
    depth = 0
    for bracket in _BRACKETS.findall(_TEXTS.sub(b"0", text)):
        depth += 1 if bracket in b"[{" else -1
        if depth > DEPTH_AT_MOST:
            return True
    return False


def _marks(text: bytes) -> int:
    """Count the values except the outermost. Empty lists and objects count twice.

    Each value follows a comma or is the first value of a list or an object.
    """
    return sum(map(text.count, (b",", b"[", b"{")))
