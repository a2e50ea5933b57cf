"""The worst time to parse an attacker's input. Measure with `python -m tests.attacks.bounds`.

These parsers run on the event loop, so they block other requests. `BOUNDS` lists each parser that
an attacker reaches, with its size limit and the slowest input of that size.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from pydantic import BaseModel
from pydantic_core import from_json

from flows.crypto.tokens import MAXIMUM_TEXT_BYTES, Purpose, Tokens
from flows.errors import InvalidArguments, InvalidToken
from flows.kinds.gate import arguments_text
from flows.oauth.access_token import BadBearer, key_id_of
from flows.oauth.responses import TOKEN_BYTES_AT_MOST
from tests.support.clock import NOON
from tests.support.mcp_server import RING
from webapp.http.browser import cookies_of, parsed, query_of
from webapp.http.parts import QUERY_BYTES_AT_MOST
from webapp.identity.accepting import HEAD_BYTES_AT_MOST
from webapp.mcp.messages import MESSAGE_BYTES_AT_MOST, VALUES_AT_MOST, has_too_many_values
from webapp.mcp.received import must_fit
from webapp.prices import Locales
from webapp.routes.router import BODY_BYTES_AT_MOST

ROUNDS = 5
COOKIES = b'a="\\;' * (HEAD_BYTES_AT_MOST // 5)
TOKENS = Tokens(RING, origin="https://tools.example")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A bounded parser.

    `measured` is the time of one run in milliseconds, as a rough guide.
    """

    what: str
    bytes: int
    work: Callable[[], object]
    measured: float


def _asked(**scope: Any) -> Any:
    return SimpleNamespace(scope=scope)


def _token() -> None:
    try:
        TOKENS.read("A" * MAXIMUM_TEXT_BYTES, purpose=Purpose.LINK, now=NOON)
    except InvalidToken:
        return


def _bearer() -> None:
    try:
        key_id_of("W1tb" * ((TOKEN_BYTES_AT_MOST - 8) // 4) + ".e30.AA")  # decodes to [[[[...
    except BadBearer:
        return


class Line(BaseModel):
    number: int


class Arguments(BaseModel):
    items: list[Line | int]
    text: str


WRONG = b'{"items":[' + b"{}," * (VALUES_AT_MOST - 20) + b'{}],"text":"'
WRONG += b"a," * ((MESSAGE_BYTES_AT_MOST - len(WRONG) - 2) // 2) + b'"}'


def wrong_arguments() -> str:
    """Check `WRONG` as the server does on the event loop, and return the text of the refusal."""
    assert not has_too_many_values(WRONG)
    given = from_json(WRONG)
    arguments_text(given)
    try:
        must_fit(
            given, tool="add", schema=None, validate=lambda g: vars(Arguments.model_validate(g))
        )
    except InvalidArguments as refused:
        return str(refused)
    return ""


BOUNDS = (
    Bound(
        what="cookies, in a request's head",
        bytes=HEAD_BYTES_AT_MOST,
        work=lambda: cookies_of(_asked(headers=[(b"cookie", COOKIES)])),
        measured=2.8,
    ),
    Bound(
        what="the languages that a browser wants",
        bytes=HEAD_BYTES_AT_MOST,
        work=lambda: Locales().best("a-b-c-d-e," * (HEAD_BYTES_AT_MOST // 10)),
        measured=2.5,
    ),
    Bound(
        what="the query of an address",
        bytes=QUERY_BYTES_AT_MOST,
        work=lambda: query_of(_asked(query_string=b"a&" * (QUERY_BYTES_AT_MOST // 2))),
        measured=0.1,
    ),
    Bound(
        what="a form",
        bytes=BODY_BYTES_AT_MOST,
        work=lambda: parsed(b"%e9=%e9&" * 1000 + b"a" * (BODY_BYTES_AT_MOST - 8000)),
        measured=0.1,
    ),
    Bound(what="a link's token", bytes=MAXIMUM_TEXT_BYTES, work=_token, measured=0.1),
    Bound(
        what="an access token, before its signature",
        bytes=TOKEN_BYTES_AT_MOST,
        work=_bearer,
        measured=0.2,
    ),
    Bound(
        what=f"a call at `/mcp` with {VALUES_AT_MOST:,} wrong values, until it is refused",
        bytes=MESSAGE_BYTES_AT_MOST,
        work=wrong_arguments,
        measured=160.0,
    ),
)


def milliseconds(bound: Bound) -> float:
    """Return the best of several rounds, in processor time."""
    times: list[float] = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        bound.work()
        times.append(time.thread_time() - began)
    return min(times) * 1000


if __name__ == "__main__":
    for bound in BOUNDS:
        print(f"{bound.what:42} {bound.bytes:9} bytes {milliseconds(bound):8.2f} ms")  # noqa: T201
