"""Keys and records that another user of the machine could read or replace are refused."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.errors import StoreUnavailable
from tests.support.records import record
from webapp.settings.key_file import KeyFile
from webapp.stores.sqlite import SqliteStore
from webapp.stores.sqlite_file import Exposed, must_be_private

Change = Callable[[Path], None]


def readable(path: Path) -> None:
    path.chmod(0o666)


def readable_by_the_group(path: Path) -> None:
    path.chmod(0o640)


def in_an_open_folder(path: Path) -> None:
    path.parent.chmod(0o777)


def in_a_folder_of_all(path: Path) -> None:
    path.parent.chmod(0o1777)


def of_another_user(path: Path) -> None:
    os.chown(path, 65534, -1)


def in_folder_of_another_user(path: Path) -> None:
    os.chown(path.parent, 65534, -1)


CHANGES = [
    (readable, "chmod 600 "),
    (readable_by_the_group, "chmod 600 "),
    (in_an_open_folder, "chmod go-w "),
    (in_a_folder_of_all, "chmod go-w "),
    pytest.param(
        of_another_user,
        "chown ",
        marks=pytest.mark.skipif(os.geteuid() != 0, reason="gives files away"),
    ),
    pytest.param(
        in_folder_of_another_user,
        "chown ",
        marks=pytest.mark.skipif(os.geteuid() != 0, reason="gives files away"),
    ),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "our data"
    folder.mkdir(0o700)
    return folder


@pytest.mark.parametrize(("change", "command"), CHANGES)
async def test_store_with_unsafe_permissions_is_refused_with_command_to_run(
    folder: Path, change: Change, command: str
) -> None:
    # finding: S5
    path = folder / "store.db"
    store = await SqliteStore.open(path)
    await store.write(record("a-1"))
    await store.aclose()
    before = path.read_bytes()
    change(path)
    with pytest.raises(StoreUnavailable) as refused:
        await SqliteStore.open(path)
    assert command in refused.value.why
    assert f"'{folder}" in refused.value.why  # quoted for use in a shell
    assert path.read_bytes() == before


@pytest.mark.parametrize(("change", "command"), CHANGES)
def test_key_file_with_unsafe_permissions_is_refused_with_command_to_run(
    folder: Path, change: Change, command: str
) -> None:
    # finding: S5
    file = KeyFile(folder / "key")
    file.ring()
    change(file.path)
    with pytest.raises(OSError, match=command):
        file.ring()


def test_key_is_not_created_in_world_writable_folder(folder: Path) -> None:
    folder.chmod(0o777)
    with pytest.raises(Exposed, match="chmod go-w"):
        KeyFile(folder / "key").ring()
    assert list(folder.iterdir()) == []


async def test_store_is_not_created_in_world_writable_folder(folder: Path) -> None:
    in_a_folder_of_all(folder / "store.db")
    with pytest.raises(StoreUnavailable, match="chmod go-w"):
        await SqliteStore.open(folder / "store.db")
    assert not (folder / "store.db").exists()


def test_symlink_to_file_in_world_writable_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    target = open_to_all / "store.db"
    target.touch(0o600)
    (folder / "store.db").symlink_to(target)
    with pytest.raises(Exposed, match="go-w"):
        must_be_private(folder / "store.db")


@pytest.mark.parametrize("side", ["-wal", "-shm"])
async def test_store_with_readable_wal_or_shm_file_is_refused(folder: Path, side: str) -> None:
    path = folder / "store.db"
    store = await SqliteStore.open(path)
    await store.write(record("a-1"))
    path.with_name(f"store.db{side}").chmod(0o666)
    with pytest.raises(StoreUnavailable, match="chmod 600"):
        await SqliteStore.open(path)
    await store.aclose()
