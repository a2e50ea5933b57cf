"""Parsing of requests: cookies and queries in one pass, without storing anything."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.work import is_at_most
from webapp.http.browser import cookies_of, query_of
from webapp.http.parts import PATH_BYTES_AT_MOST, QUERY_BYTES_AT_MOST, answer_from


@dataclass
class Sent:
    scope: dict[str, Any] = field(default_factory=dict)


def with_cookies(*headers: bytes) -> Sent:
    return Sent({"headers": [(b"host", b"x"), *((b"cookie", one) for one in headers)]})


def test_cookies_are_parsed_as_sent() -> None:
    assert cookies_of(with_cookies()) == {}
    found = cookies_of(with_cookies(b'a=1; b="x\\073"; =c; d', b"e=f=g;a=2; \xff=%41"))
    assert found == {"a": "2", "b": '"x\\073"', "": "c", "e": "f=g", "\xff": "%41"}


@pytest.mark.parametrize("filling", [b"\\", b'"', b";", b"=", b"a=;", b"\\073", b'a="\\"; '])
def test_cookies_are_parsed_in_linear_time(filling: bytes) -> None:
    # finding: S28
    # finding: XH10
    short, long = (with_cookies(b'x="' + (filling * size)[:size] + b'"') for size in (4096, 65536))

    # The input is sixteen times as long: quadratic work would take 256 times as long.
    is_linear = is_at_most(lambda: cookies_of(long), times=80, baseline=lambda: cookies_of(short))
    assert is_linear


def test_query_with_too_many_fields_is_ignored() -> None:
    assert query_of(Sent({"query_string": b"a=1&a=2&b=%20&c"})) == {
        "a": ["1", "2"],
        "b": [" "],
        "c": [""],
    }
    assert query_of(Sent({"query_string": b"a&" * 1001})) == {}


@pytest.mark.parametrize(
    ("path", "query", "passes"),
    [
        ("/e/x", b"q" * QUERY_BYTES_AT_MOST, True),
        ("/e/x", b"q" * (QUERY_BYTES_AT_MOST + 1), False),
        ("/" + "p" * (PATH_BYTES_AT_MOST - 1), b"", True),
        ("/" + "p" * PATH_BYTES_AT_MOST, b"", False),
    ],
)
async def test_too_long_address_is_refused_before_app_reads_request(
    path: str, query: bytes, passes: bool
) -> None:
    # finding: S29
    passed, sent = list[Any](), list[Any]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope)

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    scope = {"type": "http", "method": "GET", "path": path, "query_string": query, "headers": []}
    await answer_from(app, scope, receive, send, parts={})
    assert (len(passed), [one.get("status") for one in sent]) == (
        (1, []) if passes else (0, [414, None])
    )
