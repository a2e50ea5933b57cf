"""The list of stores that use a key file: no secret is deleted while a listed store needs it."""

import asyncio
import json
import os
import stat
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import pytest

from flows.errors import StoreUnavailable
from tests.support.clock import Clock
from tests.support.pgbouncer import pooled
from tests.support.postgres_server import fresh_database, shared_server
from tests.support.valkey_server import own_valkey
from webapp.cli.keys import Keys, retire, rotate
from webapp.command import CommandRefused
from webapp.connecting import connect
from webapp.records.owners import open_owners
from webapp.settings.key_usage import open_noted, wrapped_in
from webapp.settings.settings import Settings, read_settings
from webapp.stores import open_store
from webapp.stores.moving import move


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the stores, which is also the working directory."""
    folder = tmp_path / "stores"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def settings_of(folder: Path, store: str, **more: str) -> Settings:
    return read_settings({"HOME": str(folder.parent), "ELICIT_STORE": store, **more})


def noted(settings: Settings) -> list[str]:
    assert settings.key_file is not None
    return list(settings.key_file.stores())


def files_with_key(settings: Settings) -> list[str]:
    assert settings.key_file is not None
    return sorted(path.name for path in settings.key_file.path.parent.iterdir())


async def served(settings: Settings) -> None:
    """Open the store and save a person's data there, as a process does."""
    store = await open_noted(settings)
    owners = await open_owners(store=store, ring=settings.ring)
    await owners.locker("somebody")
    await store.aclose()


async def rotated_in(settings: Settings, clock: Clock) -> bytes:
    """Rotate the secret and return the previous one."""
    old = settings.ring.newest
    store = await open_noted(settings)
    keys = Keys(ring=settings.ring, store=store, place=settings.store, file=settings.key_file)
    await rotate(keys, now=clock())
    await store.aclose()
    return old


async def retired_by(
    settings: Settings, old: bytes, clock: Clock, *, anyway: bool = False
) -> list[str]:
    store = await open_noted(settings)
    keys = Keys(ring=settings.ring, store=store, place=settings.store, file=settings.key_file)
    try:
        return await retire(keys, fingerprint=old.hex(), now=clock(), anyway=anyway)
    finally:
        await store.aclose()


async def test_store_is_recorded_once_by_its_resolved_path(folder: Path) -> None:
    one = settings_of(folder, "sqlite:///one.db")
    (folder / "other name.db").symlink_to(folder / "one.db")
    for address in ("sqlite:///one.db", f"sqlite:///{folder}/one.db", "sqlite:///other name.db"):
        await served(settings_of(folder, address))
    # A line break, and a name that is not UTF-8.
    strange = ["below/two\n.db", os.fsdecode(b"below/\xff.db")]
    for name in strange:
        await served(settings_of(folder, f"sqlite:///{name}"))
    assert noted(one) == [f"sqlite:///{folder}/{name}" for name in ("one.db", *strange)]
    assert files_with_key(one) == ["key", "key.stores"]
    assert one.key_file is not None
    notes = one.key_file.path.with_name("key.stores")
    assert stat.S_IMODE(notes.stat().st_mode) == 0o600


async def test_store_opened_by_connect_is_recorded(folder: Path) -> None:
    settings = settings_of(folder, "sqlite:///one.db")
    async with connect(settings):
        assert noted(settings) == [f"sqlite:///{folder}/one.db"]


async def test_stores_opened_concurrently_are_all_recorded(folder: Path) -> None:
    all_settings = [settings_of(folder, f"sqlite:///{number}.db") for number in range(12)]
    await asyncio.gather(*(served(settings) for settings in all_settings))
    assert sorted(noted(all_settings[0])) == sorted(
        f"sqlite:///{folder}/{number}.db" for number in range(12)
    )
    assert files_with_key(all_settings[0]) == ["key", "key.stores"]


async def test_memory_store_and_store_with_environment_secret_are_not_recorded(
    folder: Path,
) -> None:
    local = settings_of(folder, "memory:")
    await served(local)
    of_a_variable = settings_of(folder, "sqlite:///one.db", ELICIT_SECRET="x" * 32)
    await served(of_a_variable)
    assert of_a_variable.key_file is None
    assert noted(local) == []
    with pytest.raises(ValueError, match="there is no store type"):
        await open_noted(settings_of(folder, "mistyped:///one.db"))
    with pytest.raises(StoreUnavailable):
        await open_noted(settings_of(folder, f"sqlite:///{folder}"))
    assert files_with_key(local) == ["key"]


async def test_retire_is_refused_and_names_store_which_needs_secret(
    folder: Path, clock: Clock
) -> None:
    one, other = (settings_of(folder, f"sqlite:///{name}.db") for name in ("one", "other"))
    await served(one)
    await served(other)
    old = await rotated_in(one, clock)
    clock.tick(days=32)
    with pytest.raises(CommandRefused, match="still encrypts 2 keys of") as refused:
        await retired_by(one, old, clock)
    assert f"first, with ELICIT_STORE=sqlite:///{folder}/other.db, run: elicit" in str(
        refused.value
    )
    await served(other)
    await rotated_in(other, clock)
    (line,) = await retired_by(one, old, clock)
    assert "is removed from" in line
    for settings in (one, other):
        assert old not in settings.ring.fingerprints
        await served(settings)


@pytest.mark.parametrize("damage", ["not a database", "folder", "symbolic link to itself"])
async def test_retire_is_refused_if_recorded_store_cannot_be_opened(
    folder: Path, clock: Clock, damage: str
) -> None:
    one, other = (settings_of(folder, f"sqlite:///{name}.db") for name in ("one", "other"))
    await served(one)
    await served(other)
    path = folder / "other.db"
    path.unlink()
    match damage:
        case "not a database":
            path.write_bytes(b"a text, and no database at all" * 50)
        case "folder":
            path.mkdir()
        case _:
            path.symlink_to(path)
    old = await rotated_in(one, clock)
    clock.tick(days=32)
    with pytest.raises(CommandRefused, match="cannot check whether that store needs") as refused:
        await retired_by(one, old, clock)
    assert f"{folder}/other.db" in str(refused.value)
    assert old in one.ring.fingerprints


async def test_retire_is_refused_for_missing_store_until_its_record_is_removed(
    folder: Path, clock: Clock
) -> None:
    one, other, third = (
        settings_of(folder, f"sqlite:///{name}.db") for name in ("one", "other", "below/third")
    )
    for settings in (one, other, third):
        await served(settings)
    (folder / "other.db").unlink()
    (folder / "below/third.db").unlink()
    (folder / "below").rmdir()
    (folder / "below").write_text("a file by now")
    old = await rotated_in(one, clock)
    clock.tick(days=32)
    with pytest.raises(CommandRefused, match=r"other\.db is missing") as refused:
        await retired_by(one, old, clock)
    assert one.key_file is not None
    assert str(refused.value).endswith(f"remove its address from {one.key_file.notes}")
    with pytest.raises(CommandRefused, match="is missing"):
        await retired_by(one, old, clock, anyway=True)
    assert old in one.ring.fingerprints
    one.key_file.notes.write_text(json.dumps(noted(one)[:1]))
    await retired_by(one, old, clock)
    assert old not in one.ring.fingerprints
    assert not (folder / "other.db").exists()


async def test_retire_follows_moved_store_once_its_new_address_is_recorded(
    folder: Path, clock: Clock
) -> None:
    one, former, new = (
        settings_of(folder, f"sqlite:///{name}.db") for name in ("one", "former", "new")
    )
    await served(one)
    await served(former)
    async with AsyncExitStack() as stack:
        source, target = [
            await stack.enter_async_context(aclosing(await open_store(each.store)))
            for each in (former, new)
        ]
        await move(source, target)
    old = await rotated_in(one, clock)
    clock.tick(days=32)
    with pytest.raises(CommandRefused, match=r"former\.db has moved to .*new\.db") as refused:
        await retired_by(one, old, clock)
    assert "run elicit keys list, and then this command again" in str(refused.value)
    await served(new)
    with pytest.raises(CommandRefused, match=r"still encrypts 2 keys of .*new\.db"):
        await retired_by(one, old, clock)
    await rotated_in(new, clock)
    (line,) = await retired_by(one, old, clock)
    assert "is removed from" in line


async def test_retire_is_refused_and_asks_for_address_with_store_password(
    folder: Path, clock: Clock
) -> None:
    one = settings_of(folder, "sqlite:///one.db")
    await served(one)
    with own_valkey(requirepass="swordfish") as server:
        other = settings_of(folder, server.url.replace("://", "://:swordfish@"))
        await served(other)
        old = await rotated_in(one, clock)
        clock.tick(days=32)
        with pytest.raises(
            CommandRefused, match="set ELICIT_STORE to the address with its password"
        ):
            await retired_by(one, old, clock)


@pytest.mark.parametrize("content", [b"", b"{}", b"[7]", b'["sqlite:', b"\xff"])
async def test_damaged_store_list_raises_error_and_is_not_treated_as_empty(
    folder: Path, clock: Clock, content: bytes
) -> None:
    one = settings_of(folder, "sqlite:///one.db")
    await served(one)
    old = await rotated_in(one, clock)
    clock.tick(days=32)
    assert one.key_file is not None
    notes = one.key_file.path.with_name("key.stores")
    notes.write_bytes(content)
    with pytest.raises(StoreUnavailable, match=r"key\.stores is damaged"):
        await open_noted(one)
    store = await open_noted(settings_of(folder, "sqlite:///one.db", ELICIT_SECRET="x" * 32))
    keys = Keys(ring=one.ring, store=store, place=one.store, file=one.key_file)
    with pytest.raises(OSError, match=r"key\.stores is damaged"):
        await retire(keys, fingerprint=old.hex(), now=clock())
    await store.aclose()
    assert old in one.ring.fingerprints


async def test_keys_of_pooled_store_are_counted_without_listen_address(
    folder: Path,
) -> None:
    async with fresh_database() as url, pooled(shared_server(), url) as address:
        settings = settings_of(folder, address, ELICIT_STORE_LISTEN=url)
        await served(settings)
        assert await wrapped_in(address, settings.ring.newest) == 2
