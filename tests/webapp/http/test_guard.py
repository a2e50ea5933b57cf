"""The guard middleware refuses requests meant for another host or made by another site."""

import asyncio
import json
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx
import pytest

from tests.support.serving import serving_at
from webapp.http.edge import Edge, Guard
from webapp.http.exchange import PROXIED_KEY, Message, Receive, Scope, Send

HERE = "http://127.0.0.1:8765"
PUBLIC = "https://tools.example.com"
HTML = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
Headers = list[tuple[str, str]]


@dataclass(slots=True)
class Answer:
    """The outcome of a request: the scope that reached the app, or the refusal."""

    passed: Scope | None = None
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


async def ask(
    guard: dict[str, Any], path: str = "/", headers: Headers | None = None, **scope_changes: Any
) -> Answer:
    answer = Answer()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        answer.passed = scope

    opened: list[bool] = []

    async def receive() -> Message:
        opened.append(True)
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        # A WebSocket's connect message has to be received before it is answered.
        assert message["type"].startswith("http") or opened
        if message["type"].endswith("http.response.start"):
            answer.status = message["status"]
            answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            answer.body += message.get("body", b"")
            answer.status = answer.status or message.get("code", 0)

    raw_path, _, query = path.partition("?")
    host = urlsplit(guard["public_url"]).netloc
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": unquote(raw_path),
        "raw_path": raw_path.encode(),
        "query_string": query.encode(),
        "headers": [
            (name.lower().encode(), value.encode())
            for name, value in ([("Host", host)] if headers is None else headers)
        ],
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8765),
        **scope_changes,
    }
    await Edge(app, guard=Guard(**guard))(scope, receive, send)
    assert (answer.passed is None) == (answer.status != 0)
    return answer


def refused(answer: Answer, status: int, code: str) -> None:
    assert answer.status == status
    assert json.loads(answer.body)["code"] == code


LOCAL: dict[str, Any] = {"public_url": HERE}
REMOTE: dict[str, Any] = {"public_url": PUBLIC}
HOST = ("Host", "127.0.0.1:8765")


@pytest.mark.parametrize(
    ("public_url", "host"),
    [
        (HERE, "127.0.0.1:8765"),
        (PUBLIC, "tools.example.com"),
        (PUBLIC, "Tools.Example.COM:443"),
        ("https://tools.example.com:443/", "tools.example.com"),
        ("http://tools.example.com", "tools.example.com:80"),
        ("http://[::1]:8765", "[0:0:0:0:0:0:0:1]:8765"),
    ],
)
async def test_own_host_is_accepted_in_any_spelling(public_url: str, host: str) -> None:
    assert (await ask({"public_url": public_url}, "/e/x", [("Host", host)])).passed


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8765",
        "127.0.0.1",
        "127.0.0.1:8766",
        "127.0.0.2:8765",
        "127.1:8765",
        "127.0.0.1.evil.example:8765",
        "localhost.:8765",
        "[::ffff:127.0.0.1]:8765",
    ],
)
@pytest.mark.parametrize("path", ["/", "/mcp", "/e/x"])
async def test_foreign_host_is_refused_with_421_and_right_address(host: str, path: str) -> None:
    answer = await ask(LOCAL, path, [("Host", host)])
    assert answer.status == 421
    problem = json.loads(answer.body)
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["status"] == 421
    assert problem["code"] == "host-foreign"
    assert HERE in problem["detail"]


async def test_any_host_path_accepts_other_hosts_but_no_foreign_origin() -> None:
    guard = {"public_url": PUBLIC, "any_host_paths": frozenset({"/metrics"})}
    assert (await ask(guard, "/metrics", [("Host", "10.0.0.7:8765")])).passed is not None
    for path in ("/metrics/x", "/", "/mcp"):
        assert (await ask(guard, path, [("Host", "10.0.0.7:8765")])).status == 421
    foreign = [("Host", "evil.example"), ("Origin", "https://evil.example")]
    refused(await ask(guard, "/metrics", foreign), 403, "origin-foreign")
    refused(await ask(guard, "/metrics", []), 400, "host-malformed")


@pytest.mark.parametrize(
    "hosts",
    [
        [],
        ["127.0.0.1:8765", "127.0.0.1:8765"],
        [""],
        ["127.0.0.1:8765, evil.example"],
        ["user@127.0.0.1:8765"],
        ["127.0.0.1:8765/x"],
        ["127.0.0.1:"],
        ["127.0.0.1:0"],
        ["127.0.0.1:99999"],
        ["127.0.0.1:+8765"],
        ["[::1"],
        ["[:::1]:8765"],
        ["[::1%25eth0]:8765"],
        ["exa\tmple"],
    ],
)
async def test_missing_repeated_or_malformed_host_is_bad_request(hosts: list[str]) -> None:
    answer = await ask(LOCAL, "/mcp", [("Host", host) for host in hosts])
    refused(answer, 400, "host-malformed")


async def test_request_with_two_lengths_is_bad_request() -> None:
    # finding: S6
    host = ("Host", "127.0.0.1:8765")
    for path in ("/mcp", "/connections"):
        both = [host, ("Content-Length", "4"), ("Transfer-Encoding", "chunked")]
        answer = await ask(LOCAL, path, both)
        refused(answer, 400, "length-twice")
        assert answer.headers["connection"] == "close"


ALIASES = pytest.mark.parametrize("host", ["localhost:8765", "[::1]:8765", "LOCALHOST:8765"])


@ALIASES
@pytest.mark.parametrize("path", ["/mcp", "/mcp/", "/mcp/x", "/.well-known/x", "/health"])
async def test_programs_can_use_any_name_of_loopback(host: str, path: str) -> None:
    assert (await ask(LOCAL, path, [("Host", host)], method="POST")).passed


@ALIASES
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_browser_is_redirected_to_public_url_with_path_and_query(
    host: str, method: str
) -> None:
    answer = await ask(LOCAL, "/e/a%20b?c=%2F&d", [("Host", host)], method=method)
    assert answer.status == 307
    assert answer.headers["location"] == f"{HERE}/e/a%20b?c=%2F&d"
    assert answer.headers["cache-control"] == "no-store"


@ALIASES
@pytest.mark.parametrize("path", ["/e/x", "/mcpx", "/healthy"])
async def test_form_posted_to_another_host_name_is_not_redirected(host: str, path: str) -> None:
    assert (await ask(LOCAL, path, [("Host", host)], method="POST")).status == 421


@ALIASES
async def test_public_server_accepts_no_other_host_names(host: str) -> None:
    assert (await ask(REMOTE, "/mcp", [("Host", host)])).status == 421
    assert (await ask(REMOTE, "/", [("Host", host)])).status == 421


async def test_forms_of_own_pages_are_accepted() -> None:
    for origin in (HERE, "HTTP://127.0.0.1:8765"):
        assert (await ask(LOCAL, "/e/x", [HOST, ("Origin", origin)], method="POST")).passed


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:8765", "[::1]:8765"])
@pytest.mark.parametrize("path", ["/mcp", "/mcp/", "/mcp/x"])
async def test_page_cannot_call_tools_even_from_own_origin(host: str, path: str) -> None:
    # Pages of other programs can have these origins: of programs that used this port before, or
    # that use this port on another address.
    # finding: S15
    for origin in (HERE, f"http://{host}", "http://localhost:8765", "http://[::1]:8765"):
        named = [("Host", host), ("Origin", origin)]
        for site in ([], [("Sec-Fetch-Site", "same-origin")], [("Sec-Fetch-Site", "none")]):
            answer = await ask(LOCAL, path, [*named, *site], method="POST")
            assert answer.status == 403
            assert "ELICIT_ORIGINS" in json.loads(answer.body)["detail"]


@pytest.mark.parametrize("site", ["same-origin", "same-site", "cross-site", "?"])
async def test_tool_call_with_browser_fetch_metadata_is_refused(site: str) -> None:
    # finding: S15
    sent = [HOST, ("Sec-Fetch-Site", site)]
    assert (await ask(LOCAL, "/mcp", sent)).status == 403
    assert (await ask(LOCAL, "/e/x", sent)).passed, (
        "a browser can open a page by a link from any site"
    )
    named = LOCAL | {"allowed_origins": frozenset({"https://app.example"})}
    assert (await ask(named, "/mcp", [*sent, ("Origin", "https://app.example")])).passed


async def test_tool_calls_of_programs_including_fetch_of_node_are_accepted() -> None:
    # finding: S15
    for sent in ([], [("Sec-Fetch-Mode", "cors")], [("Sec-Fetch-Site", "none")]):
        for host in ("127.0.0.1:8765", "localhost:8765"):
            assert (await ask(LOCAL, "/mcp", [("Host", host), *sent], method="POST")).passed


async def test_leftover_service_worker_is_replaced_with_self_unregistering_script() -> None:
    # finding: S15
    asked = [("Service-Worker", "script"), ("Sec-Fetch-Site", "same-origin")]
    for host in ("127.0.0.1:8765", "localhost:8765"):
        for path in ("/", "/sw.js", "/e/x/worker.js", "/mcp/sw.js", "/mcp", "//sw.js", "/a/../b"):
            answer = await ask(LOCAL, path, [("Host", host), *asked])
            assert (answer.status, answer.headers["content-type"]) == (200, "text/javascript")
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["service-worker-allowed"] == "/"
            for word in (b"skipWaiting", b"unregister", b"navigate"):
                assert word in answer.body
    foreign = await ask(LOCAL, "/sw.js", [("Host", "evil.example"), *asked])
    assert foreign.status == 421
    # A public name never belonged to another program, so the author's service worker is served.
    assert (await ask(REMOTE, "/sw.js", [("Host", "tools.example.com"), *asked])).passed


@pytest.mark.parametrize(
    "origins",
    [
        ["http://evil.example"],
        ["https://127.0.0.1:8765"],
        ["http://127.0.0.1:8766"],
        ["http://127.0.0.1:8765/"],
        ["http://x@127.0.0.1:8765"],
        ["http://127.0.0.1:8765 http://evil.example"],
        ["127.0.0.1:8765"],
        [""],
        [HERE, HERE],
        ["null", "null"],
    ],
)
@pytest.mark.parametrize("path", ["/", "/mcp"])
async def test_page_of_another_site_is_refused(origins: list[str], path: str) -> None:
    headers = [HOST, *(("Origin", origin) for origin in origins)]
    answer = await ask(LOCAL, path, headers, method="POST")
    refused(answer, 403, "origin-foreign")


async def test_allowed_origin_is_accepted() -> None:
    guard = LOCAL | {"allowed_origins": frozenset({"https://app.example", "vscode-webview://a1"})}
    for origin in ("https://app.example:443", "vscode-webview://a1"):
        assert (await ask(guard, "/mcp", [HOST, ("Origin", origin)])).passed
    assert (await ask(guard, "/mcp", [HOST, ("Origin", "http://app.example")])).status == 403


@pytest.mark.parametrize(
    ("path", "sites", "passes"),
    [
        ("/e/x", [], True),
        ("/e/x", ["same-origin"], True),
        ("/e/x", ["same-site"], False),
        ("/e/x", ["cross-site"], False),
        ("/e/x", ["none"], False),
        ("/e/x", ["same-origin", "same-origin"], False),
        ("/mcp", ["same-origin"], False),
        ("/mcp/", [], False),
    ],
)
async def test_null_origin_is_accepted_only_for_own_form(
    path: str, sites: list[str], passes: bool
) -> None:
    headers = [HOST, ("Origin", "null"), *(("Sec-Fetch-Site", site) for site in sites)]
    answer = await ask(LOCAL, path, headers, method="POST")
    assert (answer.passed is not None) == passes
    assert passes or answer.status == 403


@pytest.mark.parametrize(
    "path",
    [
        "//mcp",
        "/mcp//x",
        "/e/../mcp",
        "/e/..",
        "/./mcp",
        "/e/.",
        "/e/%2e%2e/mcp",
        "/e/%2E./mcp",
        "/e%2fx",
        "/e%2Fx",
        "/e\\x",
        "/e%5cx",
        "/e%252f..",
        "/e%252e%252e/x",
        "/e%00",
        "/e%0d%0aSet-Cookie:x",
        "/e%zz",
        "/e%",
        "http://evil.example/",
        "*",
        "",
    ],
)
async def test_ambiguous_path_is_bad_request(path: str) -> None:
    answer = await ask(LOCAL, path)
    refused(answer, 400, "path-malformed")


@pytest.mark.parametrize("path", ["/e/..x", "/e/x..y", "/e/a.b", "/e/%C3%A9", "/e/~x/", "/e/%20"])
async def test_unusual_but_unambiguous_path_is_accepted(path: str) -> None:
    assert (await ask(LOCAL, path)).passed


async def test_decoded_path_is_used_if_server_provides_no_raw_path() -> None:
    assert (await ask(LOCAL, "/e/%C3%A9", raw_path=None)).passed
    assert (await ask(LOCAL, "/e/../x", raw_path=None)).status == 400
    redirect = await ask(LOCAL, "/e/%C3%A9", [("Host", "localhost:8765")], raw_path=None)
    assert redirect.headers["location"] == f"{HERE}/e/%C3%A9"


@pytest.mark.parametrize(
    ("accept", "is_page"),
    [
        ([HTML], True),
        (["text/html;q=0.5", "application/json;q=0.4"], True),
        (["application/json, text/event-stream"], False),
        (["text/html, application/json"], False),
        (["text/html;q=0"], False),
        (["text/html;q=nan"], False),
        (["*/*"], False),
        ([], False),
    ],
)
async def test_browser_gets_error_page_and_program_gets_problem_json(
    accept: list[str], is_page: bool
) -> None:
    headers = [("Host", "evil.example"), *(("Accept", value) for value in accept)]
    answer = await ask(LOCAL, "/", headers)
    assert answer.status == 421
    assert (b"<h1>" in answer.body) == is_page
    assert answer.headers["content-type"].startswith(
        "text/html" if is_page else "application/problem+json"
    )
    assert HERE.encode() in answer.body
    assert answer.headers["content-length"] == str(len(answer.body))
    assert b"evil.example" not in answer.body


PROXIED: dict[str, Any] = REMOTE | {
    "trusted_proxies": (ip_network("127.0.0.0/8"), ip_network("10.0.0.0/8"), ip_network("::1"))
}
BEHIND = ("Host", "tools.example.com")


@pytest.mark.parametrize(
    ("chain", "client"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("127.0.0.1, 203.0.113.7", "203.0.113.7"),
        ("198.51.100.1, 203.0.113.7, 10.1.2.3", "203.0.113.7"),
        ("rubbish, 203.0.113.7", "203.0.113.7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("2001:DB8::0:1", "2001:db8::1"),
        ("10.9.9.9, 10.1.2.3", "10.9.9.9"),
    ],
)
@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "::ffff:10.0.0.1"])
async def test_configured_proxy_sets_client_address_and_scheme(
    chain: str, client: str, peer: str
) -> None:
    headers = [BEHIND, ("X-Forwarded-For", chain), ("X-Forwarded-Proto", "https")]
    passed = (await ask(PROXIED, "/", headers, client=(peer, 1))).passed
    assert passed is not None
    assert passed["client"] == (client, 0)
    assert passed["scheme"] == "https"
    assert passed[PROXIED_KEY] is True
    assert (b"x-forwarded-for", chain.encode()) in passed["headers"]


@pytest.mark.parametrize("peer", [("203.0.113.9", 1), ("11.0.0.1", 1), None])
async def test_untrusted_peer_cannot_set_client_address(peer: tuple[str, int] | None) -> None:
    headers = [
        BEHIND,
        *([("X-Forwarded-For", "127.0.0.1"), ("X-Forwarded-Proto", "https")] * 2),
    ]
    passed = (await ask(PROXIED, "/", headers, client=peer)).passed
    assert passed is not None
    assert passed["client"] == peer
    assert passed["scheme"] == "http"
    assert PROXIED_KEY not in passed


@pytest.mark.parametrize(
    "forwarded",
    [
        [("X-Forwarded-For", "203.0.113.7"), ("X-Forwarded-For", "203.0.113.7")],
        [("X-Forwarded-For", "unknown")],
        [("X-Forwarded-For", "203.0.113.7, ")],
        [("X-Forwarded-For", "203.0.113.7:80")],
        [("X-Forwarded-For", "")],
        [("X-Forwarded-Proto", "https"), ("X-Forwarded-Proto", "https")],
        [("X-Forwarded-Proto", "https, http")],
        [("X-Forwarded-Proto", "javascript")],
    ],
)
async def test_repeated_or_malformed_proxy_header_is_bad_request(forwarded: Headers) -> None:
    answer = await ask(PROXIED, "/", [BEHIND, *forwarded])
    refused(answer, 400, "proxy-malformed")


async def test_websocket_is_checked_like_request() -> None:
    changes: dict[str, Any] = {"type": "websocket", "scheme": "ws"}
    assert (await ask(LOCAL, "/x", [HOST], **changes)).passed
    evil = [("Host", "evil.example")]
    assert (await ask(LOCAL, "/x", evil, **changes)).status == 1008
    extended = changes | {"extensions": {"websocket.http.response": {}}}
    assert (await ask(LOCAL, "/x", evil, **extended)).status == 421
    assert (await ask(LOCAL, "/x", [("Host", "localhost:8765")], **extended)).status == 421
    secure = [BEHIND, ("X-Forwarded-Proto", "https")]
    passed = (await ask(PROXIED, "/x", secure, **changes)).passed
    assert passed is not None
    assert passed["scheme"] == "wss"


async def test_lifespan_is_passed_through() -> None:
    assert (await ask(LOCAL, type="lifespan", headers=[])).passed


@pytest.mark.parametrize(
    "guard",
    [
        {"public_url": "127.0.0.1:8765"},
        {"public_url": "ftp://127.0.0.1"},
        {"public_url": "https://tools.example.com/a//b"},
        {"public_url": "https://user@tools.example.com"},
        {"public_url": "https://tools.example.com?x"},
        {"public_url": "https://"},
        {"public_url": HERE, "allowed_origins": frozenset({"*"})},
        {"public_url": HERE, "allowed_origins": frozenset({"null"})},
    ],
)
async def test_invalid_address_or_origin_is_refused_at_startup(guard: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"is not an|must end after"):
        Guard(**guard)


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(scope["client"][0]).encode()})


async def speak(url: str, text: str) -> str:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(text.replace("\n", "\r\n").encode())
    status = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return status.decode().split(" ", 1)[1].strip()


async def test_real_connection_is_served_only_for_own_host() -> None:
    async with serving_at(lambda url: Edge(hello, guard=Guard(public_url=url))) as url:
        host = urlsplit(url).netloc
        assert await speak(url, f"GET / HTTP/1.1\nHost: {host}\n\n") == "200 OK"
        for request, status in {
            "GET /mcp HTTP/1.1\nHost: evil.example\n\n": "421 Misdirected Request",
            "GET /mcp HTTP/1.0\n\n": "400 Bad Request",
            f"GET /mcp HTTP/1.1\nHost: {host}\nHost: evil.example\n\n": "400 Bad Request",
            f"GET http://evil.example/mcp HTTP/1.1\nHost: {host}\n\n": "400 Bad Request",
            f"GET /e/%2e%2e/mcp HTTP/1.1\nHost: {host}\n\n": "400 Bad Request",
            f"POST /mcp HTTP/1.1\nHost: {host}\nOrigin: null\n\n": "403 Forbidden",
            "GET /x HTTP/1.1\nHost: evil.example\nConnection: Upgrade\nUpgrade: websocket\n"
            "Sec-WebSocket-Version: 13\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\n\n": (
                "421 Misdirected Request"
            ),
        }.items():
            assert await speak(url, request) == status


async def test_client_of_real_connection_cannot_set_its_address() -> None:
    async with (
        serving_at(lambda url: Edge(hello, guard=Guard(public_url=url))) as url,
        httpx.AsyncClient(headers={"X-Forwarded-For": "203.0.113.7"}) as client,
    ):
        assert (await client.get(url)).text == "127.0.0.1"


@pytest.mark.parametrize(
    ("url", "port"), [("http://127.0.0.1", 80), ("https://tools.example.com", 443)]
)
async def test_default_port_is_optional_and_other_ports_are_refused(url: str, port: int) -> None:
    # finding: A2
    host, guard, post = urlsplit(url).netloc, {"public_url": url}, {"method": "POST"}
    for named in (host, f"{host}:{port}"):
        origin = f"{urlsplit(url).scheme}://{named}"
        answer = await ask(guard, headers=[("Host", named), ("Origin", origin)], **post)
        assert answer.passed is not None
        assert (await ask(guard, headers=[("Host", f"{host}:8765")], **post)).passed is None
        other = [("Host", named), ("Origin", f"{origin.removesuffix(f':{port}')}:8765")]
        assert (await ask(guard, headers=other, **post)).passed is None
