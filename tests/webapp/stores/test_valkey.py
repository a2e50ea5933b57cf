"""Risks of the Valkey store only: its server, scripts, keys and connection."""

import asyncio
import os
import signal
import ssl
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from msgspec import msgpack
from msgspec.structs import replace
from redis.exceptions import ResponseError

from flows.errors import StoreUnavailable
from tests.support.certificates import issued
from tests.support.records import record
from tests.support.valkey_server import (
    free_ports,
    fresh_cluster,
    fresh_valkey,
    own_cluster,
    own_valkey,
)
from webapp.stores import Conflict, WatchHint, holds_something, open_store, without_password
from webapp.stores.moving import half, move
from webapp.stores.sqlite import SqliteStore
from webapp.stores.valkey.address import parse_address
from webapp.stores.valkey.layout import SERVER_KEY, Script, key, shard_of
from webapp.stores.valkey.server import ANSWER_SECONDS, check_info, stop
from webapp.stores.valkey.store import ValkeyStore

TIME = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
LIMIT_SECONDS = 300
_AT_ONCE = {"repl_diskless_sync_delay": "0"}  # a replica is served as soon as it connects
DOCUMENT = (Path(__file__).parents[3] / "docs" / "how-to" / "stores.md").read_text("utf-8")
SAFE = {"redis_version": "7.2.4", "role": "master", "aof_enabled": 1}


def owner_in(shard):
    """Return an owner whose records are in this shard of a cluster."""
    return next(name for name in map(str, range(10_000)) if shard_of(name, shards=64) == shard)


@asynccontextmanager
async def opened(url, *, answer_seconds=ANSWER_SECONDS):
    # On a busy machine, opening with a very short timeout may need several attempts.
    store = await recovered(lambda: ValkeyStore.open(url, answer_seconds=answer_seconds))
    try:
        yield store
    finally:
        await store.aclose()


async def refused(url, *, answer_seconds=ANSWER_SECONDS):
    """Return why the store cannot be opened, and check that no password is in the reason."""
    with pytest.raises(StoreUnavailable) as refusal:
        await ValkeyStore.open(url, answer_seconds=answer_seconds)
    assert "hunter2" not in repr(refusal.value.__notes__)
    return refusal.value.why


async def recovered(call):
    """Repeat `call` until the server is back, at most for `LIMIT_SECONDS`. Return the result."""
    async with asyncio.timeout(LIMIT_SECONDS):
        while True:
            try:
                return await call()
            except StoreUnavailable:
                await asyncio.sleep(0)


class TestAddress:
    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            ("valkey://cache.example", "valkey://cache.example:6379/0"),
            ("redis://:hunter2@cache.example:7000/3", "redis://cache.example:7000/3"),
            ("rediss://me:hunter2@[::1]/2", "rediss://[::1]:6379/2"),
            ("valkeys://cache.example?db=4&ssl_ca_certs=/ca.pem", "valkeys://cache.example:6379/4"),
            ("valkey://:hunter2@/run/valkey.sock?db=1", "valkey:///run/valkey.sock?db=1"),
            ("redis:///run/valkey.sock", "redis:///run/valkey.sock?db=0"),
        ],
    )
    def test_address_is_shown_without_password(self, url, shown):
        address = parse_address(url)
        assert address.shown == shown
        assert "hunter2" not in repr(address)
        assert address.options.get("password") == ("hunter2" if "hunter2" in url else None)

    def test_address_can_have_password_with_special_characters(self):
        address = parse_address("valkey://m%40e:p%2Fw%23%3F@cache.example")
        assert (address.options["username"], address.options["password"]) == ("m@e", "p/w#?")

    @pytest.mark.parametrize(
        ("url", "why"),
        [
            ("valkey://me:hunter2/with#hash@cache.example", "%23"),
            ("valkey://me:7/hunter2@cache.example", "%2F"),
            ("valkey://me:7?hunter2=a@cache.example", "%3F"),
            ("valkey://me:[hunter2@cache.example", "%40"),
            ("valkey://me:hunter2@cache.example:no/0", "valkey://user:password@host:6379/0"),
            ("valkey://:hunter2@", "names no host"),
            ("valkey:///3", "names no host"),
            ("valkey://:hunter2@cache.example/three", "a database number"),
            ("valkey://:hunter2@cache.example/3?db=4", "twice"),
            ("valkey://:hunter2@cache.example/?retry=1&hunter2=1", "retry"),
            ("valkey://cache.example/?ssl_ca_certs=/ca.pem", "ssl_ca_certs"),
            ("valkeys:///run/valkey.sock", "valkey://"),
        ],
    )
    def test_invalid_address_is_refused_with_correct_form(self, url, why):
        with pytest.raises(ValueError) as refusal:
            parse_address(url)
        assert why in str(refusal.value)
        if "@" in url.rpartition("hunter2")[2]:
            assert "hunter2" not in f"{refusal.value}{without_password(url)}"


class TestStart:
    @pytest.mark.parametrize(
        ("settings", "line"),
        [
            ({"appendonly": "no"}, "appendonly yes"),
            ({"appendfsync": "everysec"}, "appendfsync always"),
            ({"appendfsync": "no"}, "appendfsync always"),
            ({"maxmemory_policy": "allkeys-lru"}, "maxmemory-policy noeviction"),
        ],
    )
    async def test_unsafe_server_configuration_is_refused_with_line_to_set(self, settings, line):
        with own_valkey(**settings) as server:
            why = await refused(server.url)
        assert line in why
        assert str(server.socket) in why

    @pytest.mark.parametrize(
        ("info", "what_to_do"),
        [
            ({"redis_version": "7.0.15"}, "Redis 7.2 or newer"),
            ({"redis_version": "6.2"}, "Redis 7.2 or newer"),
            ({"role": "slave"}, "ELICIT_STORE"),
            ({"aof_enabled": 0}, "appendonly yes"),
            ({"maxmemory_policy": "allkeys-random"}, "noeviction"),
        ],
    )
    def test_unsafe_server_info_is_refused_with_fix(self, info, what_to_do):
        check_info("the address", {**SAFE, "maxmemory_policy": "volatile-lru"})
        with pytest.raises(StoreUnavailable) as refusal:
            check_info("the address", {**SAFE, **info})
        assert what_to_do in refusal.value.why

    async def test_wrong_or_missing_password_is_refused(self):
        with own_valkey(requirepass="swordfish") as server:
            for user in ("", ":hunter2@", "nobody:hunter2@"):
                url = server.url.replace("valkey://", f"valkey://{user}")
                assert "put the correct user and password in ELICIT_STORE" in await refused(url)
            url = server.url.replace("valkey://", "valkey://:swordfish@")
            async with opened(url) as store:
                assert "swordfish" not in store.address
                await store.write(record("a-1"))

    async def test_nonexistent_database_number_is_refused(self):
        server = fresh_valkey()
        why = await refused(server.url.replace("db=0", "db=99"))
        assert "no database 99" in why

    async def test_unreachable_server_is_refused(self):
        (port,) = free_ports(1)
        assert "check that its server runs" in await refused(f"redis://:hunter2@127.0.0.1:{port}")
        assert "check that its server runs" in await refused(
            "redis://:hunter2@/nowhere/valkey.sock"
        )

    async def test_tls_connection_to_server_without_tls_is_refused(self):
        with own_valkey(has_port=True) as server:
            url = server.url.replace("valkey://", "valkeys://:hunter2@")
            # A server without TLS never answers: it waits for more bytes until the timeout.
            why = await refused(url, answer_seconds=0.3)
        assert "begins with valkey://" in why

    async def test_server_with_another_protocol_is_refused(self):
        async def answer(reader, writer):
            await reader.read(100)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        web = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with web:
            port = web.sockets[0].getsockname()[1]
            assert "cannot be reached" in await refused(f"redis://:hunter2@127.0.0.1:{port}")

    async def test_newer_layout_is_refused(self):
        server = fresh_valkey()
        server.client().set("elicit:layout", "2 1")
        assert "newer version" in await refused(server.url)

    async def test_server_without_config_command_is_accepted_by_its_info(self):
        rights = ["on", "nopass", "~elicit:*", "&elicit:*", "+@all", "-@admin", "-@dangerous"]
        with own_valkey(appendfsync="everysec") as server:
            server.client().execute_command("ACL", "SETUSER", "elicit", *rights, "+info")
            async with opened(server.url.replace("://", "://elicit:any@")) as store:
                (written,) = await store.write(record("a-1"))
                assert written.version == 1
                await store.check()

    async def test_documented_acl_rights_are_sufficient(self):
        (line,) = [each for each in DOCUMENT.splitlines() if each.startswith("ACL SETUSER")]
        with own_valkey() as server:
            server.client().execute_command(*line.split())
            async with opened(server.url.replace("://", "://elicit:PASSWORD@")) as store:
                await everything(store)
        for node in (nodes := fresh_cluster()):
            node.client().execute_command(*line.split())
        async with opened(nodes[0].url.replace("://", "://elicit:PASSWORD@")) as store:
            await everything(store)

    async def test_documented_configuration_is_sufficient(self):
        block = DOCUMENT.partition("```text\n")[2].partition("```")[0]
        settings = dict(line.split() for line in block.splitlines())
        with own_valkey() as server:
            assert settings == {name: server.client().config_get(name)[name] for name in settings}
            async with opened(server.url) as store:
                await everything(store)

    async def test_user_without_required_right_is_refused(self):
        with own_valkey() as server:
            server.client().execute_command("ACL", "SETUSER", "elicit", "on", "nopass", "+info")
            why = await refused(server.url.replace("://", "://elicit:any@"))
        assert "docs/how-to/stores.md" in why

    async def test_tls_server_works_with_trusted_certificate_and_is_refused_otherwise(
        self, tmp_path
    ):
        # parity: F13
        root = issued_today("a root", is_authority=True)
        (tmp_path / "ca.pem").write_bytes(root.pem)
        server = fresh_valkey()
        async with tls_before(server.socket, root, tmp_path) as port:
            url = f"valkeys://localhost:{port}/0"
            async with opened(f"{url}?ssl_ca_certs={tmp_path / 'ca.pem'}") as store:
                await store.write(record("a-1"))
            assert "certificate" in await refused(url)

    def test_holds_something_detects_records_of_database(self):
        server = fresh_valkey()
        assert not holds_something(server.url)
        asyncio.run(write_one(server.url))
        assert holds_something(server.url)
        assert not holds_something(server.url.replace("db=0", "db=1"))
        (port,) = free_ports(1)
        with pytest.raises(StoreUnavailable, match="check that its server runs"):
            holds_something(f"redis://127.0.0.1:{port}")


class Away(SqliteStore):
    """A store whose records cannot be read: `scan` raises StoreUnavailable."""

    async def scan(self):
        async for page in super().scan():
            if page:
                raise StoreUnavailable("away")
            yield page


async def test_resumed_move_fences_every_server_of_cluster(tmp_path):
    nodes = fresh_cluster()
    source = await Away.open(tmp_path / "old.db")
    await source.write(record("a-1"))
    async with opened(nodes[0].url) as target:
        for node in nodes:
            with suppress(ResponseError):  # the shard belongs to another node
                node.client().set(key(0, "fence"), half(source.address, "elicit move"))
        assert await target.fenced() is not None
        with pytest.raises(StoreUnavailable, match="away"):
            await move(source, target)
        for number in range(20):
            with pytest.raises(StoreUnavailable, match="copies are being put here"):
                await target.write(record(f"{number}-1", owner=f"{number}"))
    await source.aclose()


async def everything(store):
    watch = store.watch()
    (row,) = await store.write(replace(record("a-1"), key="k", due_at=TIME, erase_at=TIME))
    assert await store.read("a", "elicitation", "a-1") == row
    assert await store.find("a", "elicitation", "k") == row
    assert [*await store.list("elicitation")] == [row]
    assert [*await store.due(TIME, hold=HOUR)] == [row]
    assert [page async for page in store.scan()] == [[row]]
    await store.fence("moved")
    assert await store.fenced() == "moved"
    await store.load(row, behind="moved")
    await store.fence(None)
    await store.check()
    assert (await store.clock()).tzinfo is UTC
    assert await store.erase(before=TIME) == 1
    del watch


async def write_one(url):
    async with opened(url) as store:
        await store.write(record("a-1"))


def issued_today(name, **options):
    now = datetime.now(UTC)
    return issued(name, since=now - HOUR, until=now + HOUR, **options)


@asynccontextmanager
async def tls_before(path, root, folder):
    """Open a port of localhost that terminates TLS in front of the socket."""
    holder = issued_today("localhost", by=root)
    private = holder.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "pair.pem").write_bytes(holder.pem + private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "pair.pem")

    async def pump(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def relay(reader, writer):
        inner_reader, inner_writer = await asyncio.open_unix_connection(path)
        await asyncio.gather(
            pump(reader, inner_writer), pump(inner_reader, writer), return_exceptions=True
        )

    server = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


class TestKeys:
    async def test_erasing_all_records_leaves_no_index_keys(self):
        for url, clients in places():
            async with opened(url) as store:
                for owner in "abcdefgh":
                    mine = {"owner": owner, "due_at": TIME, "erase_at": TIME}
                    rows = [
                        replace(record(f"{owner}-{n}"), **mine, key=f"{n}" if n % 2 else None)
                        for n in range(5)
                    ]
                    written = await store.write(*rows)
                    await store.due(TIME, hold=HOUR, limit=1)
                    await store.write(replace(written[0], due_at=None, erase_at=None, key="k"))
                    assert await store.erase(owner=owner) == 5
                left = {name for client in clients for name in client().keys("*")}
            assert left - {SERVER_KEY.encode()} == {b"elicit:layout"}

    async def test_shard_count_is_preserved_if_server_joins_or_leaves_cluster(self):
        for server, shards in ((fresh_cluster()[0], 1), (fresh_valkey(), 64)):
            async with opened(server.url) as store:
                assert await store.list("elicitation") == []
            for node in fresh_cluster() if shards == 1 else [fresh_valkey()]:
                with suppress(ResponseError):  # the slot belongs to another node
                    node.client().set("elicit:layout", f"1 {shards}")
            async with opened(server.url) as store:
                await everything(store)
                for owner in "abcdef":
                    await store.write(replace(record("x"), owner=owner))
                assert len([row async for page in store.scan() for row in page]) == 6

    async def test_record_with_zero_byte_is_refused(self):
        async with opened(fresh_valkey().url) as store:
            for bad in ({"id": "a\0b"}, {"key": "a\0b"}, {"kind": "a\0b"}, {"owner": "a\0b"}):
                with pytest.raises(ValueError):
                    await store.write(replace(record("a-1"), **bad))

    async def test_each_database_number_is_a_separate_store(self):
        url = fresh_valkey().url
        async with opened(url) as store, opened(url.replace("db=0", "db=1")) as another:
            watch = another.watch()
            await store.write(record("a-1"))
            await another.write(record("a-2"))
            async with opened(url.replace("db=0", "db=1")) as sibling:
                await sibling.write(record("a-3"))
            async with asyncio.timeout(LIMIT_SECONDS):
                assert (await anext(watch)).id == "a-3"
            assert await another.read("a", "elicitation", "a-1") is None

    async def test_times_beyond_index_precision_are_stored_exactly(self):
        late = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
        async with opened(fresh_valkey().url) as store:
            new = replace(record("a-1"), due_at=late, erase_at=late - timedelta(microseconds=1))
            (written,) = await store.write(new)
            assert await store.read("a", "elicitation", "a-1") == written
            (again,) = await store.write(replace(written, due_at=late - timedelta(microseconds=2)))
            assert await store.read("a", "elicitation", "a-1") == again

    async def test_versions_beyond_script_number_precision_are_compared_exactly(self):
        most = 2**63 - 2
        async with opened(fresh_valkey().url) as store:
            await store.fence("moved")
            await store.load(replace(record("a-1"), version=most - 1), behind="moved")
            await store.fence(None)
            with pytest.raises(Conflict):
                await store.write(replace(record("a-1"), version=most - 2))
            (written,) = await store.write(replace(record("a-1"), version=most - 1))
            assert written.version == most

    def test_script_with_wrong_parameter_names_is_refused(self):
        with pytest.raises(AssertionError, match=r"due\.lua declares"):
            Script("due", "now", "limit", "held")

    async def test_cluster_lists_pages_of_many_owners_in_order(self):
        async with opened(fresh_cluster()[0].url) as store:
            names = []
            for owner in (f"{number:02}" for number in range(40)):
                rows = [replace(record(f"{owner}-{n}"), owner=owner) for n in range(7)]
                await store.write(*rows)
                names += [row.id for row in rows]
            found: list[str] = []
            while page := await store.list(
                "elicitation", after=found[-1] if found else None, limit=31
            ):
                found += [row.id for row in page]
            assert found == names


def places():
    """Yield the addresses of a single server and of a cluster, each with functions for clients."""
    server, nodes = fresh_valkey(), fresh_cluster()
    yield server.url, [server.client]
    yield nodes[0].url, [node.client for node in nodes]


class TestScripts:
    async def test_flushed_script_cache_does_not_affect_calls(self):
        for url, clients in places():
            async with opened(url) as store:
                (row,) = await store.write(replace(record("a-1"), due_at=TIME, key="k"))
                for number in range(30):
                    for client in clients:
                        client().script_flush()
                    (row,) = await store.write(replace(row, status=f"{number}"))
                    for client in clients:
                        client().script_flush()
                    assert await store.find("a", "elicitation", "k") == row
                for ask in (
                    lambda store=store: store.due(TIME, hold=HOUR),
                    lambda store=store: store.list("elicitation"),
                    lambda store=store: store.erase(owner="a"),
                    store.check,
                ):
                    for client in clients:
                        client().script_flush()
                    await ask()
                assert row.version == 31

    async def test_script_cache_flushed_during_writes_leaves_no_partial_write(self):
        server = fresh_valkey()
        async with opened(server.url) as store:

            async def write(number):
                await store.write(record(f"a-{number}"), replace(record(f"b-{number}"), kind="x"))

            for round_ in range(10):
                writes = [asyncio.create_task(write(100 * round_ + n)) for n in range(40)]
                await asyncio.sleep(0)
                server.client().script_flush()
                await asyncio.gather(*writes)
            assert len(await store.list("elicitation", limit=1000)) == 400
            assert len(await store.list("x", limit=1000)) == 400

    async def test_full_memory_refuses_writes_until_memory_is_available(self):
        with own_valkey() as server:
            async with opened(server.url) as store:
                (first,) = await store.write(record("a-0", sealed=bytes(60_000)))
                used = server.client().info("memory")["used_memory"]
                server.client().config_set("maxmemory", used + 3_000_000)
                await store.check()
                rows: list[str] = []

                async def write_on():
                    while True:
                        name = f"a-{len(rows) + 1}"
                        await store.write(record(name, sealed=bytes(60_000)))
                        rows.append(name)

                with pytest.raises(StoreUnavailable) as refusal:
                    await write_on()
                assert "maxmemory" in refusal.value.why
                with pytest.raises(StoreUnavailable, match="memory"):
                    await store.check()
                found = [row.id for row in await store.list("elicitation", limit=1000)]
                assert found == sorted(["a-0", *rows])
                server.client().config_set("maxmemory", 0)
                await store.check()
                await store.write(replace(first, sealed=b""))


class TestConnection:
    async def test_killed_server_loses_no_acknowledged_write(self):
        with own_valkey() as server:
            async with opened(server.url) as store:
                acknowledged: set[str] = set()

                async def write_on(task):
                    for number in range(1_000_000):
                        name = f"{task}-{number}"
                        await store.write(record(name), record(f"{name}-twin"))
                        acknowledged.add(name)
                        if len(acknowledged) == 300:
                            server.kill()

                async with asyncio.timeout(LIMIT_SECONDS):
                    results = await asyncio.gather(
                        *map(write_on, range(20)), return_exceptions=True
                    )
                assert {type(result) for result in results} == {StoreUnavailable}
                server.start()
                rows = await recovered(lambda: store.list("elicitation", limit=1_000_000))
                found = {row.id for row in rows}
            assert found >= {name + twin for name in acknowledged for twin in ("", "-twin")}
            assert {name.removesuffix("-twin") for name in found} <= found

    @pytest.mark.parametrize("steps", [0, 1, 2, 3])
    async def test_writes_continue_after_server_is_killed_before_any_write(self, steps):
        changes = ("pending", "opened", "accepted", "taken")
        with own_valkey() as server:
            async with opened(server.url) as store, opened(server.url) as other:
                watch = other.watch()
                row = record("a-1")
                for number, status in enumerate(changes):
                    if number == steps:
                        server.kill()
                        with pytest.raises(StoreUnavailable) as refusal:
                            await store.write(replace(row, status=status))
                        assert "cannot be reached" in refusal.value.why
                        with pytest.raises(StoreUnavailable):
                            await store.read("a", "elicitation", "a-1")
                        server.start()
                    change = replace(row, status=status)
                    (row,) = await recovered(lambda change=change: store.write(change))
                assert row.version == 4
                async with asyncio.timeout(LIMIT_SECONDS):
                    while await anext(watch) not in (row, None):
                        pass

    async def test_store_leaves_replica_once_address_leads_to_new_primary(self):
        with own_valkey() as old, own_valkey() as new:
            way = old.socket.with_name("way")
            way.symlink_to(old.socket)
            async with opened(f"valkey://{way}?db=0") as store:
                await store.write(record("a-1"))
                (nobody,) = free_ports(1)
                # Copy the server key to the new primary, as replication would have done.
                new.client().set(SERVER_KEY, old.client().get(SERVER_KEY))
                old.client().replicaof("127.0.0.1", nobody)
                for call in (lambda: store.write(record("a-2")), store.check):
                    with pytest.raises(StoreUnavailable, match="replica"):
                        await call()
                await store.list("elicitation")
                way.unlink()
                way.symlink_to(new.socket)
                (row,) = await recovered(lambda: store.write(record("a-2")))
                assert [*await store.list("elicitation")] == [row]

    # finding: XB2
    @pytest.mark.parametrize("is_started_again", [False, True])
    async def test_replaced_primary_is_refused_after_its_return(self, caplog, is_started_again):
        with own_valkey(has_port=True, **_AT_ONCE) as old, own_valkey() as new:
            way = old.socket.with_name("way")
            way.symlink_to(old.socket)
            async with opened(f"valkey://{way}?db=0") as store:
                (row,) = await store.write(record("a-1"))
                new.client().replicaof("127.0.0.1", old.port)
                while not new.client().get(SERVER_KEY):
                    pass
                new.client().replicaof("NO", "ONE")
                way.unlink()
                way.symlink_to(new.socket)
                old.client().client_kill_filter(_type="normal", skipme=True)
                (row,) = await recovered(lambda: store.write(row))
                if is_started_again:
                    old.kill()
                    old.start()
                way.unlink()
                way.symlink_to(old.socket)
                await store._server._client.connection_pool.disconnect()
                for call in (lambda: store.write(row), store.check, lambda: store.list("x")):
                    with pytest.raises(StoreUnavailable, match="another server has replaced it"):
                        await call()
                way.unlink()
                way.symlink_to(new.socket)
                assert await recovered(lambda: store.read("a", "elicitation", "a-1")) == row
            assert "store.older_server" in caplog.messages

    # finding: XB2
    async def test_connections_to_old_primary_are_closed_after_switch_to_new_primary(
        self,
    ):
        with own_valkey(has_port=True, **_AT_ONCE) as old, own_valkey() as new:
            way = old.socket.with_name("way")
            way.symlink_to(old.socket)
            async with opened(f"valkey://{way}?db=0") as store:
                watch = store.watch()
                await store.write(record("a-1"))
                new.client().replicaof("127.0.0.1", old.port)
                while not new.client().get(SERVER_KEY):
                    pass
                new.client().replicaof("NO", "ONE")
                way.unlink()
                way.symlink_to(new.socket)
                await store._server._client.connection_pool.disconnect()
                await store.write(record("a-2"))
                async with asyncio.timeout(LIMIT_SECONDS):
                    assert await anext(watch) is None, (
                        "the watch reports that changes may have been missed"
                    )
                while len(old.client().client_list(_type="pubsub")):
                    pass
                assert old.client().hlen(key(0, "records")) == 1

    async def test_server_restarted_several_times_stays_in_use(self):
        with own_valkey() as server:
            async with opened(server.url) as store, opened(server.url) as other:
                (row,) = await store.write(record())
                for _ in range(3):
                    server.kill()
                    server.start()
                    (row,) = await recovered(lambda row=row: other.write(row))
                assert await recovered(lambda: store.read("a", "elicitation", "a-1")) == row

    async def test_watch_is_asked_to_look_again_after_server_restart(self):
        with own_valkey() as server:
            async with opened(server.url) as store, opened(server.url) as other:
                watch = store.watch()
                server.kill()
                server.start()
                async with asyncio.timeout(LIMIT_SECONDS):
                    assert await anext(watch) is None
                (written,) = await recovered(lambda: other.write(record("a-1")))
                async with asyncio.timeout(LIMIT_SECONDS):
                    assert await anext(watch) == written

    async def test_watch_with_filter_receives_matching_records_only(self):
        url = fresh_valkey().url
        async with opened(url) as store, opened(url) as other:
            watch = store.watch()
            watch.choose(lambda kind, id: (kind, id) == ("elicitation", "wanted"))
            await other.write(record("another"))
            (written,) = await other.write(record("wanted"))
            async with asyncio.timeout(LIMIT_SECONDS):
                assert await anext(watch) == written

    async def test_unreadable_message_makes_watch_look_again(self):
        server = fresh_valkey()
        async with opened(server.url) as store, opened(server.url) as other:
            watch = store.watch()
            for message in (b"", b"rubbish", msgpack.encode(("x", ["no name"])), b"\xc0"):
                server.client().publish("elicit:0:written", message)
            async with asyncio.timeout(LIMIT_SECONDS):
                assert await anext(watch) is None
                (written,) = await other.write(record("a-1"))
                while await anext(watch) != written:
                    pass

    async def test_watch_is_asked_to_look_again_after_many_concurrent_writes(self):
        url = fresh_valkey().url
        async with opened(url) as store, opened(url) as other:
            watch = store.watch()
            many = [[record(f"{part}-{number}") for number in range(500)] for part in range(3)]
            await asyncio.gather(*(other.write(*rows) for rows in many))
            async with asyncio.timeout(LIMIT_SECONDS):
                assert await anext(watch) is None

    async def test_message_with_many_invented_names_does_not_cause_a_read_per_name(self):
        # finding: XS11
        server = fresh_valkey()
        async with opened(server.url) as store, opened(server.url) as other:
            watch = store.watch()
            message = msgpack.encode(("x", [f"a\0elicitation\0{n}" for n in range(100_000)]))
            before = server.client().info("stats")["total_commands_processed"]
            server.client().publish("elicit:0:written", message)
            async with asyncio.timeout(LIMIT_SECONDS):
                assert await anext(watch) is None
                (written,) = await other.write(record("a-1"))
                while await anext(watch) != written:
                    pass
            assert server.client().info("stats")["total_commands_processed"] - before < 100

    async def test_watch_is_asked_to_look_again_periodically(self, monkeypatch):
        monkeypatch.setattr("webapp.stores.valkey.changes.LOOK_AGAIN_SECONDS", 0.01)
        async with opened(fresh_valkey().url) as store, asyncio.timeout(LIMIT_SECONDS):
            watch = store.watch()
            assert [await anext(watch) for _ in range(3)] == [WatchHint.READ_AGAIN] * 3

    async def test_suspended_server_raises_error_instead_of_hang(self):
        with own_valkey() as server:
            async with opened(server.url) as other:
                (row,) = await other.write(record("a-1"))
            async with opened(server.url, answer_seconds=0.2) as store:
                os.kill(server.pid, signal.SIGSTOP)
                async with asyncio.timeout(LIMIT_SECONDS):
                    with pytest.raises(StoreUnavailable):
                        await store.write(replace(row, status="unknown"))
                    with pytest.raises(StoreUnavailable):
                        await store.read("a", "elicitation", "a-1")
                os.kill(server.pid, signal.SIGCONT)
                # The server may run the first write only now. The read returns the row from before
                # or after the first write. The second write succeeds, or conflicts with the first.
                found = await recovered(lambda: store.read("a", "elicitation", "a-1"))
                assert found in (row, replace(row, status="unknown", version=2))
                later = recovered(lambda: store.write(replace(found, status="later")))
                end = (await asyncio.gather(later, return_exceptions=True))[0]
                if isinstance(end, Conflict):
                    assert end.found == replace(row, status="unknown", version=2)
                else:
                    assert end == (replace(found, status="later", version=found.version + 1),)

    async def test_server_with_appendfsync_disabled_acknowledges_no_write(self):
        with own_valkey() as server:
            async with opened(server.url, answer_seconds=0.5) as store:
                server.client().config_set("appendfsync", "no")
                with pytest.raises(StoreUnavailable):
                    await store.write(record("a-1"))
                server.client().config_set("appendfsync", "always")
            async with opened(server.url) as store:
                await store.write(record("a-2"))

    async def test_store_recovers_after_connections_are_killed(self):
        server = fresh_valkey()
        async with opened(server.url) as store:
            (row,) = await store.write(record("a-1"))
            for number in range(5):
                server.client().execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                server.client().execute_command("CLIENT", "KILL", "TYPE", "pubsub")
                change = replace(row, status=f"{number}")
                (row,) = await recovered(lambda change=change: store.write(change))
            assert row.version == 6


class TestCluster:
    async def test_cluster_distributes_owners_across_all_servers(self):
        nodes = fresh_cluster()
        async with opened(nodes[0].url) as store:
            for number in range(100):
                await store.write(replace(record("x"), owner=f"{number}"))
            stored = [
                sum(len(node.client().hkeys(name)) for name in node.client().keys("*:records"))
                for node in nodes
            ]
        assert sum(stored) == 100
        assert all(count > 10 for count in stored)

    async def test_moved_shard_is_found_on_its_new_server(self):
        nodes = fresh_cluster()
        async with opened(nodes[0].url) as store:
            (row,) = await store.write(record("a-1"))
            async with opened(nodes[1].url) as other:
                end = begin_move(nodes, key(shard_of("a", shards=64), "records"))
                with pytest.raises(StoreUnavailable, match="is being resharded"):
                    await store.write(replace(row, status="half of it is here"))
                end()
                (row,) = await recovered(lambda: store.write(replace(row, status="opened")))
                assert await other.read("a", "elicitation", "a-1") == row
                (row,) = await other.write(replace(row, status="accepted"))
                assert await store.read("a", "elicitation", "a-1") == row

    # finding: XB1
    async def test_silent_node_does_not_delay_other_nodes_and_is_replaced_by_replica(self):
        with own_cluster(has_replica=True) as nodes:
            client = nodes[0].client()
            while client.info("replication").get("slave0", {}).get("state") != "online":
                pass
            async with opened(nodes[1].url, answer_seconds=2) as store:
                owners = {store._server.node_of(("GET", key(n, "x"))): n for n in range(64)}
                of_node = {name.rpartition(":")[2]: owner_in(n) for name, n in owners.items()}
                mine, others = of_node.pop(str(nodes[0].port)), [*of_node.values()]
                for owner in (mine, *others):
                    await store.write(record(owner=owner))
                own = key(owners[f"127.0.0.1:{nodes[0].port}"], "last")
                client.set(own, "by this client, for whose writes it then waits")
                assert client.execute_command("WAIT", 1, 60_000) == 1
                os.kill(nodes[0].pid, signal.SIGSTOP)
                try:
                    silent = asyncio.create_task(store.read(mine, "elicitation", "a-1"))
                    await asyncio.sleep(0)
                    for owner in others:
                        assert await store.read(owner, "elicitation", "a-1") is not None
                        assert not silent.done(), "only the read from the silent node waits"
                    with pytest.raises(StoreUnavailable):
                        await silent
                    found = await recovered(lambda: store.read(mine, "elicitation", "a-1"))
                    assert found is not None
                finally:
                    os.kill(nodes[0].pid, signal.SIGCONT)

    async def test_cluster_server_outage_affects_only_its_own_owners(self):
        with own_cluster() as nodes:
            async with opened(nodes[0].url) as store:
                owners = [f"{number}" for number in range(20)]
                rows = [replace(record("x"), owner=owner) for owner in owners]
                rows = [(await store.write(row))[0] for row in rows]
                nodes[2].kill()
                ends = [
                    (await asyncio.gather(store.write(row), return_exceptions=True))[0]
                    for row in rows
                ]
                assert {type(end) for end in ends} == {StoreUnavailable, tuple}
                for node in nodes:
                    node.kill()
                for call in (lambda: store.write(rows[0]), lambda: store.list("x"), store.check):
                    with pytest.raises(StoreUnavailable):
                        await call()
                with pytest.raises(StoreUnavailable):
                    await open_store(nodes[0].url)
                watch = store.watch()
                for node in nodes:
                    node.start()
                async with asyncio.timeout(LIMIT_SECONDS):
                    assert await anext(watch) is None
                for owner in owners:
                    row = await recovered(lambda o=owner: store.read(o, "elicitation", "x"))
                    await recovered(lambda row=row: store.write(replace(row, status="again")))


def asked(node, *command):
    return node.client().execute_command("CLUSTER", *command)


def begin_move(nodes, name):
    """Start to move the key's slot to the next server. Return a function that ends the move."""
    slot = asked(nodes[0], "KEYSLOT", name)
    ids = [asked(node, "MYID") for node in nodes]
    (giver,) = [n for n, node in enumerate(nodes) if asked(node, "COUNTKEYSINSLOT", slot)]
    taker = (giver + 1) % len(nodes)
    asked(nodes[taker], "SETSLOT", slot, "IMPORTING", ids[giver])
    asked(nodes[giver], "SETSLOT", slot, "MIGRATING", ids[taker])
    place = ("MIGRATE", "127.0.0.1", nodes[taker].port, "", 0, 5000, "KEYS")
    first, *rest = asked(nodes[giver], "GETKEYSINSLOT", slot, 100)
    nodes[giver].client().execute_command(*place, first)

    def end():
        nodes[giver].client().execute_command(*place, *rest)
        for node in (nodes[taker], nodes[giver]):
            asked(node, "SETSLOT", slot, "NODE", ids[taker])

    return end


async def test_task_that_loses_its_cancellation_is_cancelled_again():
    """Simulate `asyncio.wait_for` of Python 3.11, which can lose a cancellation."""
    lost = 0

    async def lose_one() -> None:
        nonlocal lost
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        lost += 1
        await asyncio.Event().wait()

    task = asyncio.create_task(lose_one())
    await asyncio.sleep(0)
    await stop(task)
    assert task.cancelled()
    assert lost == 1
