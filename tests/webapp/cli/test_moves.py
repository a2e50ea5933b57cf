"""`elicit move`: its output, its refusals, and the behavior of a server on a fenced store."""

from pathlib import Path

import httpx

from tests.support.cli import called, run, serving
from tests.support.pgbouncer import pooled
from tests.support.postgres_server import fresh_database, shared_server
from tests.support.records import record, scanned
from tests.support.shared_stores import STORES
from tests.support.valkey_server import own_valkey
from webapp.stores import Record, open_store
from webapp.stores.moving import half


async def put(address: str, *ids: str) -> None:
    store = await open_store(address)
    await store.write(*map(record, ids))
    await store.aclose()


async def ids(address: str) -> list[str]:
    store = await open_store(address)
    found = [each.id for each in await store.list("elicitation")]
    await store.aclose()
    return found


async def rows(address: str) -> list[Record]:
    store = await open_store(address)
    found = await scanned(store)
    await store.aclose()
    return sorted(found, key=lambda each: (each.owner, each.kind, each.id))


def places(home: Path) -> tuple[str, str]:
    folder = home / ".local/share/elicit-url"
    return f"sqlite:///{folder / 'elicit.db'}", f"sqlite:///{home / 'place/new.db'}"


async def test_store_in_use_is_moved_and_next_server_uses_same_key(
    tmp_path: Path,
) -> None:
    old, new = places(tmp_path)
    async with serving(home=tmp_path) as server, httpx.AsyncClient(base_url=server.url) as anybody:
        await put(old, "a-1", "a-2")
        assert (await anybody.get("/ready")).status_code == 200
        moved = await called("move", old, new, home=tmp_path)
        assert (moved.status, moved.err) == (0, "")
        assert "each compared" in moved.out
        assert f"Set ELICIT_STORE to {new} for every server" in moved.out
        assert "Its key is" in moved.out
        answer = await anybody.get("/ready")
        assert answer.status_code == 503
    for more in ((), ("--workers", "2")):
        refused = await run("serve", "--port", "0", *more, home=tmp_path)
        says = f"elicit: this store has moved to {new}: set ELICIT_STORE to that\n"
        assert (refused.status, refused.err) == (2, says), (
            "the server exits with status 2, as for each invalid setting"
        )
    assert await ids(new) == ["a-1", "a-2"]
    async with (
        serving(home=tmp_path, extra={"ELICIT_STORE": new}) as server,
        httpx.AsyncClient(base_url=server.url) as anybody,
    ):
        assert (await anybody.get("/ready")).status_code == 200
    again = await called("move", old, new, home=tmp_path)
    assert (again.status, "was moved before" in again.out) == (0, True)
    stores = (tmp_path / ".local/share/elicit-url/key.stores").read_text()
    assert new in stores, "the key file lists the new store"


async def test_commands_on_moved_store_report_new_address(tmp_path: Path) -> None:
    old, new = places(tmp_path)
    assert (await called("payments", "list", home=tmp_path)).status == 0
    assert (await called("move", old, new, home=tmp_path)).status == 0
    says = f"elicit: this store has moved to {new}: set ELICIT_STORE to that\n"
    for command in (
        ("pending", "list"),
        ("payments", "list", "--json"),
        ("webhooks", "list"),
        ("keys", "list"),
    ):
        listed = await called(*command, home=tmp_path)
        assert (listed.status, listed.err.startswith(says)) == (0, True), command
        assert "has moved to" not in listed.out
    for command in (("backup", "copy"), ("keys", "rotate"), ("keys", "retire", "00")):
        refused = await called(*command, home=tmp_path)
        assert (refused.status, refused.out, refused.err) == (2, "", says), command
    assert not (tmp_path / "copy").exists()


async def test_commands_on_incomplete_copy_exit_with_status_1_and_reason(
    tmp_path: Path,
) -> None:
    old, _ = places(tmp_path)
    assert (await called("payments", "list", home=tmp_path)).status == 0
    store = await open_store(old)
    await store.fence(half("a copy", "elicit restore"))
    await store.aclose()
    refused = await called("serve", "--port", "0", home=tmp_path)
    assert refused.status == 1
    assert refused.err.startswith("elicit: copies are being put here")
    assert "Traceback" not in refused.err
    # finding: XV8
    for command in (("payments", "list"), ("keys", "list"), ("doctor",)):
        result = await called(*command, home=tmp_path)
        assert result.status == 1, command
        assert "copies are being put here" in result.err + result.out


async def test_unfence_undoes_move_and_explains_consequences(tmp_path: Path) -> None:
    old, new = places(tmp_path)
    await put(old, "a-1")
    assert (await called("move", old, new, home=tmp_path)).status == 0
    undone = await called("move", "--unfence", old, home=tmp_path)
    assert undone.status == 0
    assert "has moved to" in undone.out
    assert "Serve only one of the two" in undone.out
    await put(old, "a-2")
    nothing = await called("move", "--unfence", old, home=tmp_path)
    assert "There was no fence" in nothing.out


async def test_dry_run_counts_records_and_creates_nothing(tmp_path: Path) -> None:
    old, new = places(tmp_path)
    await put(old, "a-1", "a-2")
    result = await called("move", old, new, "--dry-run", home=tmp_path)
    assert result.status == 0
    assert "2 records would be moved" in result.out
    assert "2  elicitation" in result.out
    assert not (tmp_path / "place").exists()
    await put(old, "a-3")


async def test_move_reports_which_secret_target_needs(tmp_path: Path) -> None:
    old, new = places(tmp_path)
    await put(old, "a-1")
    moved = await called("move", old, new, home=tmp_path, extra={"ELICIT_SECRET": "a" * 32})
    assert "need the current ELICIT_SECRET" in moved.out
    foreign = await called("move", new, f"{new}.2", home=tmp_path)
    assert "is not the key file of" in foreign.out


async def test_invalid_moves_are_refused(tmp_path: Path) -> None:
    old, new = places(tmp_path)
    for arguments, words, status in (
        ((old, new), "There is no store at the address", 1),
        ((old,), "Name both addresses", 2),
        ((), "Name both addresses", 2),
        ((old, new, "--unfence", old), "Name both addresses", 2),
    ):
        refused = await called("move", *arguments, home=tmp_path)
        assert (refused.status, words in refused.err) == (status, True)
    await put(old, "a-1")
    await put(new, "a-2")
    dry = await called("move", old, new, "--dry-run", home=tmp_path)
    assert (dry.status, "already has records" in dry.err) == (1, True)
    for target, words, status in (
        (new, "already has records. Name an empty target", 1),
        (old, "Name another target", 1),
        ("memory:", "lost when its process ends", 1),
        ("mongodb://far", "there is no store type 'mongodb'", 2),
    ):
        refused = await called("move", old, target, home=tmp_path)
        assert (refused.status, words in refused.err) == (status, True)
    await put(old, "a-3")


async def test_dry_run_is_refused_for_unsafe_target_as_move_is(tmp_path: Path) -> None:
    old, _ = places(tmp_path)
    await put(old, "a-1")
    with own_valkey(appendonly="no") as server:
        for way in ((), ("--dry-run",)):
            refused = await called("move", old, server.url, *way, home=tmp_path)
            assert (refused.status, "appendonly yes" in refused.err) == (1, True), way
    async with STORES["postgres"](tmp_path) as new:
        result = await called("move", old, new, "--dry-run", home=tmp_path)
        assert (result.status, "1 record would be moved" in result.out) == (0, True)
        assert await ids(new) == []


async def test_move_does_not_print_password(tmp_path: Path) -> None:
    old, _ = places(tmp_path)
    await put(old, "a-1")
    result = await called(
        "move", old, "postgresql://ann:hunter2@127.0.0.1:1/x", "--dry-run", home=tmp_path
    )
    assert "hunter2" not in result.out + result.err


async def test_store_is_unchanged_after_moves_through_all_store_kinds(
    tmp_path: Path,
) -> None:
    first, last = places(tmp_path)
    await put(first, *(f"a-{number:03}" for number in range(300)))
    before = await rows(first)
    async with STORES["postgres"](tmp_path) as second, STORES["valkey"](tmp_path) as third:
        for old, new in ((first, second), (second, third), (third, last)):
            moved = await called("move", old, new, home=tmp_path)
            assert (moved.status, moved.err) == (0, "")
            assert await rows(new) == before
            assert await rows(old) == before
            refused = await called("move", old, f"{last}.other", home=tmp_path)
            assert (refused.status, "has moved to" in refused.err) == (1, True)


async def test_addresses_are_read_from_environment_variables(tmp_path: Path) -> None:
    old, new = places(tmp_path)
    await put(old, "a-1")
    extra = {"OLD": old, "NEW": new}
    moved = await called("move", "env:OLD", "env:NEW", home=tmp_path, extra=extra)
    assert (moved.status, await ids(new)) == (0, ["a-1"])
    undone = await called("move", "--unfence", "env:OLD", home=tmp_path, extra=extra)
    assert (undone.status, "The fence is removed" in undone.out) == (0, True)
    refused = await called("move", "env:OLD", "env:NOWHERE", home=tmp_path, extra=extra)
    assert (refused.status, "NOWHERE is not set" in refused.err) == (2, True)


async def test_pooled_store_is_moved_without_listen_address(
    tmp_path: Path,
) -> None:
    async with fresh_database() as url, pooled(shared_server(), url) as address:
        new = f"sqlite:///{tmp_path / 'place/new.db'}"
        await put(url, "a-1")
        moved = await called("move", address, new, home=tmp_path)
        assert (moved.status, moved.err, await ids(new)) == (0, "", ["a-1"])


async def test_move_from_unreachable_store_shows_store_error(
    tmp_path: Path,
) -> None:
    refused = await called("move", *["postgresql://a:b@127.0.0.1:1/a"] * 2, home=tmp_path)
    assert refused.err.startswith("elicit: The store cannot be opened: the store postgresql://a@")
