"""The backup file with all rows: complete, private, and refused if damaged."""

import fcntl
import stat
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from flows.errors import StoreUnavailable
from tests.support.records import NOW, record
from webapp.stores import Record
from webapp.stores.backup_file import BackupFile, BadBackup, write_backup
from webapp.stores.sqlite import MemoryStore


async def filled() -> MemoryStore:
    store = MemoryStore()
    for owner in "abc":
        some = [record(f"{owner}-{n}", owner=owner, key=f"k{n}", due_at=NOW) for n in range(400)]
        await store.write(*some)
    await store.write(record("a-all", erase_at=NOW, status="ä\n", sealed=bytes(range(256)) * 256))
    return store


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


async def rows_of(backup: BackupFile) -> list[Record]:
    return [each async for page in backup.scan() for each in page]


async def test_backup_returns_all_written_records_and_is_private(tmp_path: Path) -> None:
    store, path = await filled(), tmp_path / "backup"
    assert await write_backup(store, path, now=NOW) == 1201
    backup = BackupFile(path)
    assert backup.made_at == NOW
    assert await rows_of(backup) == [each async for page in store.scan() for each in page]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert names(tmp_path) == ["backup"]


async def test_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "backup").write_text("mine")
    with pytest.raises(FileExistsError):
        await write_backup(await filled(), tmp_path / "backup", now=NOW)
    assert (tmp_path / "backup").read_text() == "mine"
    assert names(tmp_path) == ["backup"]


class Failing(MemoryStore):
    async def scan(self) -> AsyncIterator[Sequence[Record]]:
        yield [record(version=1)]
        raise StoreUnavailable("the disk is gone")


async def test_store_failure_during_backup_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        await write_backup(Failing(), tmp_path / "backup", now=NOW)
    assert names(tmp_path) == []


async def test_truncated_or_modified_backup_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "backup"
    store = MemoryStore()
    await store.write(record("a-1", key="k"), record("a-2"))
    await write_backup(store, path, now=NOW)
    whole = path.read_bytes()
    for end in range(len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(BadBackup):
            BackupFile(path)
    for place in range(len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(BadBackup):
            BackupFile(path)
    lines = whole.splitlines(keepends=True)
    for others in (lines[:1] + lines[2:], [*lines[:2], lines[1], *lines[2:]], [*lines, lines[-1]]):
        path.write_bytes(b"".join(others))
        with pytest.raises(BadBackup):
            BackupFile(path)


async def test_backup_of_newer_version_is_refused_with_reason(tmp_path: Path) -> None:
    path = tmp_path / "backup"
    path.write_bytes(b'{"elicit_backup":2,"made_at":"2026-01-01T00:00:00Z"}\n{"rows":0}\n')
    with pytest.raises(BadBackup, match="by a newer version of elicit"):
        BackupFile(path)


async def test_backup_removes_file_of_killed_backup_and_leaves_file_of_running_backup(
    tmp_path: Path,
) -> None:
    # finding: XV8
    store = MemoryStore()
    killed, written = (tmp_path / f".elicit-backup-{name}" for name in ("killed", "written"))
    killed.write_text("half")
    with written.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        await write_backup(store, tmp_path / "copy", now=NOW)
        assert names(tmp_path) == [written.name, "copy"]
