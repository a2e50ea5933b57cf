"""Checks of what a client sends to the MCP endpoint: each message, then a request's parameters.

Risks: the library parses a message on the event loop, validates it there, and names each invalid
value. One message of a few megabytes then blocks all callers for seconds. So the length, the number
of values and the depth of a message are checked before it is parsed. Empty lists and objects are
the worst case: each has three bytes, but costs an object to create and perhaps an error to report.

Another risk is that a value of the wrong type, a lone surrogate or a very long text reaches the
code that stores it. Then no question can be asked, and the log fills with tracebacks. So the
parameters that this server reads are checked too. The library validates a tool's arguments against
the tool's schema, and text for a person is checked where it is shown.
"""

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, NoReturn, cast

import mcp_types as types
from mcp.server.transport_security import DEFAULT_MAX_REQUEST_BODY_SIZE
from mcp.shared.exceptions import MCPError

from webapp.http.exchange import Message, Receive

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


NAME_CHARACTERS_AT_MOST: Final = 256


def check_params(method: str, params: Mapping[str, Any] | None) -> None:
    """Check a request's parameters. Raises MCPError (-32602), without quoting the values."""
    params = params or {}
    about = params.get("_meta")
    infos: list[object] = [params.get("clientInfo")]
    if isinstance(about, Mapping):
        infos.append(cast("Mapping[str, object]", about).get(types.CLIENT_INFO_META_KEY))
    for info in infos:
        if not isinstance(info, Mapping):
            continue
        name = cast("Mapping[str, object]", info).get("name")
        if isinstance(name, str) and len(name) > NAME_CHARACTERS_AT_MOST:
            _refuse(
                f"The client's name (clientInfo) has more than {NAME_CHARACTERS_AT_MOST} "
                "characters."
            )
    if method == "tools/call":
        _must_be_a_call(params)


def _must_be_a_call(params: Mapping[str, Any]) -> None:
    name, state = params.get("name"), params.get("requestState")
    if (
        not isinstance(name, str)
        or len(name) > NAME_CHARACTERS_AT_MOST
        or not _is_valid_unicode(name)
    ):
        _refuse(
            f"name must be a tool's name: a string of at most {NAME_CHARACTERS_AT_MOST} characters."
        )
    if not isinstance(params.get("arguments"), Mapping | None):
        _refuse("arguments must be a JSON object.")
    if state is not None and not isinstance(state, str):
        _refuse("requestState must be a string: send it back unchanged.")
    responses = params.get("inputResponses")
    if responses is None:
        return
    if not isinstance(responses, Mapping):
        _refuse("inputResponses must be a JSON object.")
    for one in cast("Mapping[str, object]", responses).values():
        if not isinstance(one, Mapping):
            _refuse("Each response in inputResponses must be a JSON object.")


def _is_valid_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True


def _refuse(why: str) -> NoReturn:
    raise MCPError(types.INVALID_PARAMS, why)
