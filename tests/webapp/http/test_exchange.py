"""The facts of a request hold only for the request that they were read from."""

from typing import Any

import pytest

from webapp.http.connection import Scope
from webapp.http.exchange import PEER_KEY, PROXIED_KEY, Exchange, exchange_of, note_exchange
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


def test_each_header_is_found_by_its_name_with_all_its_values() -> None:
    exchange = Exchange(request())
    assert exchange.headers == {b"host": ["127.0.0.1:8765"], b"x-twice": ["a", "b"]}


def test_facts_of_an_unchanged_request_are_read_once() -> None:
    scope = request()
    exchange = note_exchange(scope)
    assert exchange_of(scope) is exchange
    assert exchange_of({**scope, "path": "/elsewhere", "user": object()}) is exchange


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
def test_facts_of_a_changed_request_are_read_again(change: dict[str, Any]) -> None:
    scope = request()
    local = LocalPeers(uid=1000, public_url=URL)
    exchange = note_exchange(scope)
    assert local.is_local(scope)
    changed = {**scope, **change}
    assert exchange_of(changed) is not exchange
    assert local.is_local(changed) == local.is_local({**request(), **change})


def test_header_that_is_added_in_place_is_seen() -> None:
    scope = request()
    note_exchange(scope)
    scope["headers"].append((b"forwarded", b"for=203.0.113.7"))
    assert exchange_of(scope).headers[b"forwarded"] == ["for=203.0.113.7"]
    assert not LocalPeers(uid=1000, public_url=URL).is_local(scope)


def test_header_that_is_changed_in_place_is_seen() -> None:
    pair = [b"host", b"127.0.0.1:8765"]  # some servers pass lists
    scope = request(headers=[pair])
    note_exchange(scope)
    pair[1] = b"evil.example"
    assert exchange_of(scope).headers == {b"host": ["evil.example"]}


def test_facts_that_something_else_put_into_the_scope_are_not_used() -> None:
    scope = request()
    note_exchange(scope)
    key = next(key for key, value in scope.items() if isinstance(value, Exchange))

    class Forged(Exchange):
        """A type of somebody else, with other headers for the same request."""

    forged_headers = Forged(request())
    forged_headers.headers = {}
    for forged in (Exchange(request(headers=[])), forged_headers, "headers", None):
        scope[key] = forged
        assert exchange_of(scope).headers[b"host"] == ["127.0.0.1:8765"]


def test_decision_of_one_server_is_not_that_of_another() -> None:
    scope = request()
    note_exchange(scope)
    assert LocalPeers(uid=1000, public_url=URL).is_local(scope)
    assert not LocalPeers(uid=1001, public_url=URL).is_local(scope)
    assert not LocalPeers(uid=1000, public_url="http://127.0.0.1:9000").is_local(scope)
