"""Facts of a request are reused only for that request. Bodies are read before a refusal."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.work import steps_of
from webapp.http.browser import cookies_of
from webapp.http.exchange import (
    PEER_KEY,
    PROXIED_KEY,
    Exchange,
    Facts,
    Message,
    Scope,
    exchange_of,
    facts_of,
)
from webapp.identity.local_peer import LocalPeers, Peer

URL = "http://127.0.0.1:8765"


def request(**changes: Any) -> Scope:
    scope = {
        "type": "http",
        "http_version": "1.1",
        "headers": [(b"host", b"127.0.0.1:8765"), (b"X-Twice", b" a "), (b"x-twice", b"b")],
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8765),
        PEER_KEY: Peer(uid=1000),
    }
    return {**scope, **changes}


def begun(scope: Scope, sent: list[Message] | None = None) -> Exchange:
    """Begin an exchange, whose messages to the client go to the list `sent`."""

    async def send(message: Message) -> None:
        if sent is not None:
            sent.append(message)

    return Exchange(scope, _nothing, send)


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


async def _dropped(message: Message) -> None:
    pass


def test_each_header_is_found_by_its_name_with_all_its_values() -> None:
    assert Facts(request()).headers == {b"host": ["127.0.0.1:8765"], b"x-twice": ["a", "b"]}


def test_facts_of_an_unchanged_request_are_read_once() -> None:
    scope = request()
    facts = begun(scope).facts
    assert facts_of(scope) is facts
    assert facts_of({**scope, "path": "/elsewhere", "user": object()}) is facts


@pytest.mark.parametrize(
    "change",
    [
        {"headers": [(b"host", b"127.0.0.1:8765"), (b"via", b"a proxy")]},
        {"client": ("203.0.113.7", 50000)},
        {"server": ("203.0.113.7", 8765)},
        {"http_version": "1.0"},
        {PROXIED_KEY: True},
        {PEER_KEY: Peer(uid=1001)},
        {PEER_KEY: Peer(uid=1000)},  # an equal owner of another connection
        {PEER_KEY: None},
    ],
)
def test_request_facts_are_recomputed_if_middleware_changed_the_scope(
    change: dict[str, Any],
) -> None:
    scope = request()
    local = LocalPeers(uid=1000, public_url=URL)
    facts = begun(scope).facts
    assert local.is_local(scope)
    changed = {**scope, **change}
    assert facts_of(changed) is not facts
    assert local.is_local(changed) == local.is_local({**request(), **change})


def test_header_that_is_added_in_place_is_seen() -> None:
    scope = request()
    begun(scope)
    scope["headers"].append((b"forwarded", b"for=203.0.113.7"))
    assert facts_of(scope).headers[b"forwarded"] == ["for=203.0.113.7"]
    assert not LocalPeers(uid=1000, public_url=URL).is_local(scope)


def test_header_that_is_changed_in_place_is_seen() -> None:
    pair = [b"host", b"127.0.0.1:8765"]  # some servers pass lists
    scope = request(headers=[pair])
    begun(scope)
    pair[1] = b"evil.example"
    assert facts_of(scope).headers == {b"host": ["evil.example"]}


def test_facts_that_something_else_put_into_the_scope_are_not_used() -> None:
    scope = request()
    begun(scope)
    key = next(key for key, value in scope.items() if isinstance(value, Exchange))

    class Forged(Exchange):
        """A foreign subclass of Exchange, with other headers for the same request."""

    forged_headers = Forged(request(), _nothing, _dropped)
    forged_headers.facts.headers = {}
    for forged in (begun(request(headers=[])), forged_headers, forged_headers.facts, "x", None):
        scope[key] = forged
        assert facts_of(scope).headers[b"host"] == ["127.0.0.1:8765"]


def test_is_local_is_decided_separately_for_each_server() -> None:
    scope = request()
    begun(scope)
    assert LocalPeers(uid=1000, public_url=URL).is_local(scope)
    assert not LocalPeers(uid=1001, public_url=URL).is_local(scope)
    assert not LocalPeers(uid=1000, public_url="http://127.0.0.1:9000").is_local(scope)


def test_connection_is_judged_once_and_again_if_its_address_changed() -> None:
    peer = Peer(uid=1000)
    first, later, elsewhere = request(), request(), request(client=("203.0.113.7", 50000))
    local, another_users = (LocalPeers(uid=uid, public_url=URL) for uid in (1000, 1001))
    for scope in (first, later, elsewhere):
        scope[PEER_KEY] = peer
    local.is_local(request())  # fills the caches that all connections share
    of_first = steps_of(lambda: local.is_local(first))
    assert steps_of(lambda: local.is_local(later)) < of_first
    for _ in range(2):
        assert local.is_local(first)
        assert not local.is_local(elsewhere)
        assert local.is_local(later)
        assert not another_users.is_local(later)


def test_facts_follow_a_header_that_a_layer_replaced() -> None:
    scope = request()
    facts = begun(scope).facts
    changed = facts.replaced(scope, b"host", "localhost:8765")
    assert facts_of(changed) is facts
    assert facts_of(changed).headers[b"host"] == ["localhost:8765"]
    assert changed["headers"][0] == (b"host", b"localhost:8765")
    assert facts_of(scope).headers[b"host"] == ["127.0.0.1:8765"]


def test_cookies_of_a_request_are_read_once() -> None:
    scope = request(headers=[(b"cookie", b"a=1; b=2")])
    begun(scope)
    found = cookies_of(SimpleNamespace(scope=scope))
    assert found == {"a": "1", "b": "2"}
    assert cookies_of(SimpleNamespace(scope=scope)) is found
    changed = {**scope, "headers": [(b"cookie", b"a=3")]}
    assert cookies_of(SimpleNamespace(scope=changed)) == {"a": "3"}


async def test_response_headers_contain_every_change_of_the_exchange() -> None:
    sent = list[Message]()
    exchange = begun(request(), sent)
    exchange.added = [(b"x-added", b"1")]
    exchange.suffix = b"x-id", b".worker"
    exchange.root_path = b"/tools"
    headers = [(b"X-Id", b"6f1c"), (b"location", b"/e/token"), (b"x-other", b"/e/token")]
    await exchange.send({"type": "http.response.start", "status": 200, "headers": headers})
    assert sent[0]["headers"] == [
        (b"X-Id", b"6f1c.worker"),
        (b"location", b"/tools/e/token"),
        (b"x-other", b"/e/token"),
        (b"x-added", b"1"),
    ]
    assert exchange.status == 200


async def test_redirect_to_another_host_gets_no_root_path() -> None:
    sent, headers = list[Message](), [(b"location", b"https://github.com/login")]
    exchange = begun(request(), sent)
    exchange.root_path = b"/tools"
    await exchange.send({"type": "http.response.start", "status": 200, "headers": headers})
    assert sent[0]["headers"] == headers


async def test_exchange_is_reused_only_with_its_own_send_function() -> None:
    scope = request()
    exchange = begun(scope)
    assert exchange_of(scope, _nothing, exchange.send) is exchange
    other = exchange_of(scope, _nothing, _dropped)
    assert other is not exchange
    assert exchange_of(scope, _nothing, other.send) is other


class Sender:
    """A client whose body arrives in parts. `order` has what the server received and sent."""

    def __init__(self, *parts: bytes, headers: dict[str, str], is_whole: bool = True) -> None:
        self.order = list[Any]()
        self._is_whole = is_whole
        self._parts = [*parts]
        pairs = [(name.encode(), text.encode("latin-1")) for name, text in headers.items()]
        self.exchange = Exchange(request(headers=pairs), self._receive, self._send)

    async def refuse(self, status: int) -> None:
        await self.exchange.send({"type": "http.response.start", "status": status})

    async def _receive(self) -> Message:
        if not self._parts:
            self.order.append("disconnected")
            return {"type": "http.disconnect"}
        part = self._parts.pop(0)
        self.order.append(part)
        has_more = bool(self._parts) or not self._is_whole
        return {"type": "http.request", "body": part, "more_body": has_more}

    async def _send(self, message: Message) -> None:
        self.order.append(message["status"])


@pytest.mark.parametrize("status", [302, 401, 404, 503])
@pytest.mark.parametrize("length", [{"content-length": "2"}, {"transfer-encoding": "chunked"}])
async def test_short_body_is_read_before_the_refusal(status: int, length: dict[str, str]) -> None:
    sender = Sender(b"a", b"b", headers=length)
    await sender.refuse(status)
    assert sender.order == [b"a", b"b", status]


async def test_application_still_receives_the_body_that_was_read_before_the_refusal() -> None:
    sender = Sender(b"a", b"b", headers={"content-length": "2"})
    assert (await sender.exchange.next_message())["body"] == b"a"
    await sender.refuse(404)
    assert sender.order == [b"a", b"b", 404]
    assert (await sender.exchange.next_message())["body"] == b"b"
    assert (await sender.exchange.next_message())["type"] == "http.disconnect"


@pytest.mark.parametrize(
    "headers",
    [{}, {"content-length": "0"}, {"content-length": "1", "expect": "100-continue"}],
)
async def test_nothing_is_read_if_no_body_is_on_its_way(headers: dict[str, str]) -> None:
    sender = Sender(b"a", headers=headers)
    await sender.refuse(404)
    assert sender.order == [404]


async def test_body_that_the_application_has_read_is_not_read_again() -> None:
    sender = Sender(b"a", headers={"content-length": "1"})
    await sender.exchange.next_message()
    await sender.refuse(404)
    assert sender.order == [b"a", 404]


async def test_long_body_delays_no_refusal() -> None:
    parts = [b"a" * 32 * 1024] * 9
    sender = Sender(*parts, headers={"transfer-encoding": "chunked"})
    await sender.refuse(413)
    assert len(sender.order) == 3


@pytest.mark.parametrize("length", ["65537", "294912", "9" * 5000, "", "-1", "²"])
async def test_nothing_is_read_of_a_body_that_is_declared_too_long(length: str) -> None:
    sender = Sender(b"a", headers={"content-length": length})
    await sender.refuse(413)
    assert sender.order == [413]


@pytest.mark.parametrize("length", ["1", "00001", "65536"])
async def test_body_of_the_longest_length_is_read(length: str) -> None:
    sender = Sender(b"a", headers={"content-length": length})
    await sender.refuse(413)
    assert sender.order == [b"a", 413]


async def test_client_that_disconnects_in_its_body_delays_no_refusal() -> None:
    sender = Sender(b"a", is_whole=False, headers={"content-length": "9"})
    await sender.refuse(404)
    assert sender.order == [b"a", "disconnected", 404]
    await sender.exchange.next_message()
    await sender.exchange.next_message()
    assert sender.exchange.is_broken


async def test_body_that_the_application_is_receiving_is_left_to_it() -> None:
    part = asyncio.get_running_loop().create_future()
    exchange = Exchange(request(headers=[(b"content-length", b"1")]), lambda: part, _dropped)
    receiving = asyncio.create_task(exchange.next_message())
    await asyncio.sleep(0)
    await exchange.send({"type": "http.response.start", "status": 404})
    part.set_result({"type": "http.request", "body": b"a"})
    assert (await receiving)["body"] == b"a"
