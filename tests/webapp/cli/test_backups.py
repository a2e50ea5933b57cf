"""`elicit backup`, `restore` and `doctor`, while a server runs and after its end."""

import errno
import os
import shutil
import stat
from pathlib import Path

import httpx
import pytest

from tests.support.cli import called, serving
from tests.support.pgbouncer import pooled
from tests.support.postgres_server import fresh_database, shared_server
from tests.support.records import record
from webapp.stores import open_store
from webapp.stores.sqlite import SqliteStore


def folder_of(home: Path) -> Path:
    return home / ".local/share/elicit-url"


async def put(home: Path, id: str) -> None:
    store = await SqliteStore.open(folder_of(home) / "elicit.db")
    await store.write(record(id))
    await store.aclose()


async def ids(home: Path) -> list[str]:
    store = await SqliteStore.open(folder_of(home) / "elicit.db")
    found = [each.id for each in await store.list("elicitation")]
    await store.aclose()
    return found


async def test_backup_during_serving_is_complete_and_restored_with_its_key(
    tmp_path: Path,
) -> None:
    # finding: R7
    home, copy = tmp_path / "home", tmp_path / "copy.db"
    home.mkdir()
    async with serving(home=home) as server, httpx.AsyncClient(base_url=server.url) as anybody:
        await put(home, "a-1")
        made = await called("backup", str(copy), home=home)
        assert made.status == 0, made.err
        refused = await called("restore", str(copy), home=home)
        assert (refused.status, "is open: stop every server" in refused.err) == (1, True)
        assert (await anybody.get("/ready")).status_code == 200
    key = copy.with_name("copy.db.key")
    assert all(stat.S_IMODE(each.stat().st_mode) == 0o600 for each in (copy, key))
    await put(home, "a-2")
    again = await called("backup", str(copy), home=home)
    assert (again.status, "exists already" in again.err) == (1, True)
    back = await called("restore", str(copy), home=home)
    assert back.status == 0, back.err
    assert "is saved as" in back.out
    assert await ids(home) == ["a-1"]
    # finding: XB4
    result = await called("doctor", home=home)
    assert "a backup was restored" in result.out
    shutil.rmtree(folder_of(home))
    assert (await called("restore", str(copy), home=home)).status == 0
    assert await ids(home) == ["a-1"]
    assert (folder_of(home) / "key").read_bytes() == key.read_bytes()
    assert (await called("doctor", home=home)).status == 0


async def test_backup_with_different_key_is_not_restored(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for home in (one, other):
        home.mkdir()
        assert (await called("payments", "list", home=home)).status == 0
    assert (await called("backup", str(tmp_path / "copy.db"), home=one)).status == 0
    refused = await called("restore", str(tmp_path / "copy.db"), home=other)
    assert (refused.status, "holds another key" in refused.err) == (1, True)


async def test_backup_without_key_file_warns_about_missing_secret(
    tmp_path: Path,
) -> None:
    extra = {"ELICIT_SECRET": "a" * 32}
    assert (await called("payments", "list", home=tmp_path, extra=extra)).status == 0
    made = await called("backup", str(tmp_path / "copy.db"), home=tmp_path, extra=extra)
    assert "THE SECRET IS NOT IN THE BACKUP" in made.out
    assert not (tmp_path / "copy.db.key").exists()


async def test_restore_with_wrong_secret_is_refused_before_any_change(
    tmp_path: Path,
) -> None:
    copy, store = tmp_path / "copy", {"ELICIT_STORE": f"sqlite:///{tmp_path}/new.db"}
    then, now = {"ELICIT_SECRET": "a" * 32}, {"ELICIT_SECRET": "b" * 32}
    assert (await called("payments", "list", home=tmp_path, extra=then)).status == 0
    assert (await called("backup", str(copy), home=tmp_path, extra=then)).status == 0
    for secret, source in ((now, "ELICIT_SECRET"), ({}, folder_of(tmp_path) / "key")):
        if not secret:
            assert (await called("clients", "clear", home=tmp_path, extra=store)).status == 0
            (tmp_path / "new.db").unlink()
        refused = await called("restore", str(copy), home=tmp_path, extra={**store, **secret})
        assert (refused.status, refused.out) == (2, "")
        assert (
            f"{source} does not decrypt {copy}, which was encrypted with another secret"
            in refused.err
        )
        assert not (tmp_path / "new.db").exists()
    both = {"ELICIT_SECRET": f"{'b' * 32},{'a' * 32}", **store}
    assert (await called("restore", str(copy), home=tmp_path, extra=both)).status == 0


async def test_damaged_store_is_reported_by_list_and_doctor(
    tmp_path: Path,
) -> None:
    # finding: R7
    assert (await called("payments", "list", home=tmp_path)).status == 0
    file = folder_of(tmp_path) / "elicit.db"
    content = file.read_bytes()
    file.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    listed = await called("payments", "list", home=tmp_path)
    assert (listed.status, listed.out) == (1, "")
    assert "is damaged" in listed.err
    result = await called("doctor", home=tmp_path)
    assert result.status == 1
    assert "NO  store       The store cannot be opened" in result.out
    assert "elicit restore" in result.out


async def test_doctor_reports_key_file_readable_by_others(tmp_path: Path) -> None:
    assert (await called("payments", "list", home=tmp_path)).status == 0
    (folder_of(tmp_path) / "key").chmod(0o644)
    result = await called("doctor", home=tmp_path)
    assert (result.status, "chmod 600" in result.out) == (1, True)


async def test_backup_is_restored_into_another_store_and_refused_for_memory_store(
    tmp_path: Path,
) -> None:
    copy, elsewhere = tmp_path / "copy", tmp_path / "elsewhere/new.db"
    assert (await called("payments", "list", home=tmp_path)).status == 0
    await put(tmp_path, "a-1")
    assert (await called("backup", str(copy), home=tmp_path)).status == 0
    extra = {"ELICIT_STORE": f"sqlite:///{elsewhere}"}
    back = await called("restore", str(copy), home=tmp_path, extra=extra)
    assert back.status == 0, back.err
    assert "The store is restored to its state at 20" in back.out
    store = await SqliteStore.open(elsewhere)
    assert [each.id for each in await store.list("elicitation")] == ["a-1"]
    assert await store.fenced() is None
    await store.aclose()
    assert sorted(each.name for each in elsewhere.parent.iterdir()) == ["new.db"]
    refused = await called("restore", str(copy), home=tmp_path, extra={"ELICIT_STORE": "memory:"})
    assert (refused.status, "set another store" in refused.err) == (1, True)


async def test_refused_restore_leaves_no_key_and_restore_behind_pooler_succeeds(
    tmp_path: Path,
) -> None:
    home, elsewhere, copy = tmp_path / "home", tmp_path / "elsewhere", tmp_path / "copy"
    for folder in (home, elsewhere):
        folder.mkdir()
    assert (await called("payments", "list", home=home)).status == 0
    await put(home, "a-1")
    assert (await called("backup", str(copy), home=home)).status == 0
    key = folder_of(elsewhere) / "key"
    async with fresh_database() as url, pooled(shared_server(), url) as address:
        store = await open_store(url)
        await store.write(record("b-1", owner="b"))
        extra = {"ELICIT_STORE": address, "ELICIT_STORE_LISTEN": url}
        refused = await called("restore", str(copy), home=elsewhere, extra=extra)
        assert (refused.status, "already has records" in refused.err) == (1, True)
        assert not key.exists()
        await store.erase(owner="b")
        assert (await called("restore", str(copy), home=elsewhere, extra=extra)).status == 0
        assert [each.id for each in await store.list("elicitation")] == ["a-1"]
        await store.aclose()
    assert key.read_bytes() == (folder_of(home) / "key").read_bytes()


@pytest.mark.parametrize("step", ["fsync of key", "log", "store", "new store"])
async def test_restore_that_fails_in_any_step_changes_nothing(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, copy = tmp_path / "home", tmp_path / "copy"
    home.mkdir()
    assert (await called("payments", "list", home=home)).status == 0
    await put(home, "a-1")
    assert (await called("backup", str(copy), home=home)).status == 0
    folder, store = folder_of(home), folder_of(home) / "elicit.db"
    (folder / "key").unlink()
    store.with_name("elicit.db-wal").write_bytes(b"the last writes")
    before = {each.name: each.read_bytes() for each in folder.iterdir()}
    function, is_step = {
        "fsync of key": ("fsync", lambda file: Path(f"/dev/fd/{file}").readlink().name == "key"),
        "log": ("rename", lambda path: Path(path).name == "elicit.db-wal"),
        "store": ("rename", lambda path: Path(path) == store),
        "new store": ("replace", lambda path: Path(path).parent == folder),
    }[step]
    real = getattr(os, function)

    def failing(what: int | Path, *others: Path) -> None:
        if is_step(what):
            raise OSError(errno.EIO, "the disk is broken")
        real(what, *others)

    with monkeypatch.context() as broken:
        broken.setattr(os, function, failing)
        refused = await called("restore", str(copy), home=home)
    assert (refused.status, "the disk is broken" in refused.err) == (1, True)
    assert (refused.out, {each.name: each.read_bytes() for each in folder.iterdir()}) == (
        "",
        before,
    )
    assert (await called("restore", str(copy), home=home)).status == 0
    assert await ids(home) == ["a-1"]
    (aside,) = folder.glob("elicit.db.before-*-wal")
    assert aside.read_bytes() == b"the last writes"


async def test_restore_of_invalid_or_missing_backup_changes_nothing(tmp_path: Path) -> None:
    assert (await called("payments", "list", home=tmp_path)).status == 0
    await put(tmp_path, "a-1")
    copy = tmp_path / "copy"
    copy.write_text("no backup")
    refused = await called("restore", str(copy), home=tmp_path)
    assert (refused.status, "not a file made by elicit backup" in refused.err) == (1, True)
    assert await ids(tmp_path) == ["a-1"]
    missing = await called("restore", str(tmp_path / "missing"), home=tmp_path)
    assert (missing.status, "does not exist" in missing.err) == (1, True)


async def test_backup_of_empty_store_is_refused(tmp_path: Path) -> None:
    refused = await called("backup", str(tmp_path / "copy"), home=tmp_path)
    assert (refused.status, "The store is still empty" in refused.err) == (1, True)
    assert not (tmp_path / "copy").exists()
