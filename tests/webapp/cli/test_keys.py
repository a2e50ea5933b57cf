"""`elicit keys`: the key file, and a rotation while a server runs."""

import os
import re
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest

from flows.crypto.tokens import fingerprint_of
from flows.errors import WeakSecret
from tests.support.cli import Ended, called, ended, serving, waiting_demo
from tests.support.valkey_server import own_valkey
from webapp.demo.walker import Page, walk
from webapp.settings.key_file import KeyFile, SecretSetting

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
OLD, NEW = b"an old secret of thirty-two bytes", b"a-new-secret-of-thirty-two-bytes"
SECRETS = {"ELICIT_SECRET": "b" * 32 + "," + "a" * 32}
ANSWERS = {"name": "Eve", "line": "Hi!"}


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    path = tmp_path / ".local/share/elicit-url/key"
    path.parent.mkdir(parents=True)
    return KeyFile(path)


def written(file: KeyFile, content: bytes) -> KeyFile:
    file.path.write_bytes(content)
    file.path.chmod(0o600)
    return file


@pytest.mark.parametrize("content", [OLD, OLD + b"\n", b"two\nlines that are one secret\r\nfor us"])
def test_key_file_with_a_single_secret_is_read_and_extended(file: KeyFile, content: bytes) -> None:
    written(file, content)
    assert file.read() == (SecretSetting(value=content.strip()),)
    assert file.put_in_front(NEW, before=fingerprint_of(content.strip()), now=NOW)
    assert file.read() == (
        SecretSetting(value=NEW),
        SecretSetting(value=content.strip(), ceased_at=NOW),
    )
    assert file.path.read_bytes().splitlines()[1] == NEW
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert [path.name for path in file.path.parent.iterdir()] == ["key"]


@pytest.mark.parametrize(
    "line",
    [
        b"short",
        NEW + b" yesterday",
        NEW + b" 2026-03-01",
        b"hex:00ff",
        b"hex:zz",
        b"\xff" + b" \xff",
    ],
)
def test_invalid_line_is_reported_by_number_without_its_content(file: KeyFile, line: bytes) -> None:
    written(file, b"# secrets\n" + OLD.replace(b" ", b"-") + b"\n\n" + line + b"\n")
    with pytest.raises(WeakSecret, match=r"^line 4 is not a secret") as refused:
        file.read()
    assert str(refused.value).isascii()
    assert "secret-of" not in str(refused.value)


def test_repr_does_not_contain_secret(file: KeyFile) -> None:
    written(file, OLD)
    assert "old secret" not in repr(file.read()) + repr(file.ring())


def test_loaded_keyring_stays_usable_if_key_file_is_damaged_or_missing(
    file: KeyFile, caplog: pytest.LogCaptureFixture
) -> None:
    ring = written(file, NEW).ring()
    before = ring.fingerprints
    file.path.chmod(0o644)
    written(file, b"short")
    assert ring.fingerprints == before
    file.path.unlink()
    assert ring.fingerprints == ring.fingerprints == before
    written(file, OLD + b", and so all others")
    assert ring.fingerprints == ring.fingerprints == before
    events = [record.message for record in caplog.records]
    assert events == ["key_file.unusable", "key_file.unusable", "key_file.foreign"]
    written(file, NEW)
    file.put_in_front(OLD, before=before[0], now=NOW)
    assert list(ring.fingerprints) == [fingerprint_of(OLD), before[0]]
    file.take_out(before[0])
    assert list(ring.fingerprints) == [fingerprint_of(OLD)]
    file.take_out(fingerprint_of(OLD))
    assert len(file.read()) == 1


async def test_keys_commands_without_secret_create_nothing(tmp_path):
    for command in (("list",), ("rotate",), ("rotate", "--after-leak"), ("retire", "00000000")):
        end = await called("keys", *command, home=tmp_path)
        assert (end.status, end.out) == (1, "")
        assert end.err.startswith("elicit: No secret exists yet: ELICIT_SECRET is not set")
    assert list(tmp_path.iterdir()) == []


async def test_links_of_running_server_stay_valid_after_key_rotation(tmp_path, file):
    async with serving(home=tmp_path) as server, httpx.AsyncClient() as browser:
        before = await waiting_demo(server.url, home=tmp_path)
        link = before.link
        # Open the form before the rotation. The browser sends the form after the rotation.
        (form, *_) = Page((await browser.get(link)).text).forms
        end = await called("keys", "rotate", home=tmp_path)
        assert (end.status, end.err) == (0, "")
        assert "was created, and is the newest in" in end.out
        new, old = file.ring().fingerprints
        assert new.hex() in end.out
        after = await waiting_demo(server.url, tool="use_key", home=tmp_path)
        its_link = after.link
        assert (await browser.get(its_link)).status_code == 200
        sent = await browser.post(urljoin(link, form.action), data=form.fields)
        assert sent.status_code == 303
        await walk(browser, link, answers=ANSWERS, say=lambda _: None)
        assert "Eve wrote: Hi!" in (await ended(before.process)).out
        after.process.kill()
        await after.process.wait()
    async with serving(home=tmp_path, port=_port(server.url)), httpx.AsyncClient() as browser:
        for address in (link, its_link):
            assert (await browser.get(address)).status_code == 200
    end = await called("keys", "list", home=tmp_path)
    counted = {line.split("\t")[0]: line.split("\t")[1] for line in end.out.splitlines()}
    assert list(counted) == [new.hex(), old.hex()]
    assert counted[old.hex()] == "0"
    end = await called("keys", "retire", old.hex(), home=tmp_path)
    assert end.status == 1
    assert "can be valid until" in end.err
    end = await called("keys", "retire", old.hex(), "--anyway", home=tmp_path)
    assert (end.status, end.err) == (0, "")
    async with serving(home=tmp_path, port=_port(server.url)), httpx.AsyncClient() as browser:
        assert (await browser.get(its_link)).status_code == 200
        assert (await browser.get(link)).status_code == 404


async def test_rotation_with_environment_secrets_rewraps_store_with_first_secret(tmp_path):
    async with serving(home=tmp_path, extra={"ELICIT_SECRET": "a" * 32}):
        end = await called("keys", "rotate", home=tmp_path, extra=SECRETS)
        assert end.status == 1
        assert "has ever loaded" in end.err
        assert "Traceback" not in end.err
    async with serving(home=tmp_path, extra=SECRETS):
        end = await _keys("rotate", home=tmp_path)
        assert "2 keys of" in end.out
        assert "Do not change ELICIT_SECRET yet" in end.out
    async with (
        serving(home=tmp_path, extra={"ELICIT_SECRET": "b" * 32}) as server,
        httpx.AsyncClient() as browser,
    ):
        assert (await browser.get(f"{server.url}/health")).status_code == 200
    end = await _keys("retire", fingerprint_of(b"a" * 32).hex(), home=tmp_path)
    assert "remove it from ELICIT_SECRET" in end.out
    assert not (tmp_path / ".local/share/elicit-url/key").exists()


async def test_rotation_of_store_with_other_secret_is_refused_and_key_file_unchanged(
    tmp_path, file
):
    async with serving(home=tmp_path, extra={"ELICIT_SECRET": "a" * 32}):
        pass
    written(file, NEW)
    end = await called("keys", "rotate", home=tmp_path)
    assert end.status == 2
    assert "was encrypted with another secret" in end.err
    assert file.path.read_bytes() == NEW


async def test_secret_cannot_be_retired_while_another_served_store_needs_its_key(tmp_path, file):
    one, other = ({"ELICIT_STORE": f"sqlite:///{name}.db"} for name in ("one", "other"))
    for store in (one, other):
        async with serving(home=tmp_path, extra=store):
            pass
    (old,) = file.ring().fingerprints
    assert (await called("keys", "rotate", home=tmp_path, extra=one)).status == 0
    retiring = ("keys", "retire", old.hex(), "--anyway")
    end = await called(*retiring, home=tmp_path, extra=one)
    assert (end.status, end.out) == (1, "")
    assert f"still encrypts 2 keys of sqlite:///{tmp_path}/other.db" in end.err
    async with serving(home=tmp_path, extra=other):
        pass
    end = await called("keys", "rotate", home=tmp_path, extra=other)
    assert "was interrupted and is now finished: 2 keys of" in end.out
    assert len(file.read()) == 2
    end = await called(*retiring, home=tmp_path, extra=one)
    assert (end.status, end.err) == (0, "")
    assert "is gone" not in end.out
    assert old not in file.ring().fingerprints
    for store in (one, other):
        async with serving(home=tmp_path, extra=store):
            pass


async def test_key_file_readable_by_others_is_refused_with_fix(tmp_path, file):
    written(file, NEW).path.chmod(0o644)
    end = await called("keys", "rotate", home=tmp_path)
    assert end.status == 2
    assert "chmod 600" in end.err
    assert NEW.decode() not in end.err


def test_replaced_secret_has_date_with_time_zone(file: KeyFile) -> None:
    written(file, NEW)
    file.put_in_front(OLD.replace(b" ", b"_"), before=fingerprint_of(NEW), now=NOW)
    ceased_at = file.read()[1].ceased_at
    assert ceased_at is not None
    assert ceased_at.utcoffset() == timedelta()


async def _keys(*arguments: str, home: Path) -> Ended:
    end = await called("keys", *arguments, home=home, extra=SECRETS)
    assert (end.status, end.err) == (0, "")
    return end


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])


async def test_no_key_is_created_for_store_encrypted_with_missing_key(tmp_path, file):
    # finding: R8
    async with serving(home=tmp_path):
        pass
    secret = file.path.read_bytes()
    file.path.unlink()
    for command in (("payments", "list"), ("serve", "--port", "0")):
        refused = await called(*command, home=tmp_path)
        assert refused.status == 2
        assert "elicit.db contains data that only the secrets of that file decrypt" in refused.err
        assert not file.path.exists()
    elsewhere = {"ELICIT_STORE": f"sqlite:///{tmp_path / 'another.db'}"}
    refused = await called("payments", "list", home=tmp_path, extra=elsewhere)
    assert f"remove it from {file.notes}" in refused.err
    assert not file.path.exists()
    written(file, secret)
    assert (await called("payments", "list", home=tmp_path)).status == 0


async def test_new_key_is_created_for_empty_store(tmp_path, file):
    (file.path.parent / "elicit.db").touch(mode=0o600)
    assert (await called("payments", "list", home=tmp_path)).status == 0
    assert file.path.exists()


@pytest.mark.parametrize("name", ["key", "key.stores"])
async def test_pipe_as_key_file_is_refused_without_blocking(tmp_path, file, name):
    # finding: S6
    if name == "key.stores":
        written(file, OLD)
    os.mkfifo(file.path.with_name(name), 0o600)
    refused = await called("payments", "list", home=tmp_path)
    assert refused.status in (1, 2)
    assert re.search(rf"{name} is not a (regular )?file", refused.err)


async def test_commands_do_not_show_store_password(tmp_path):
    with own_valkey(requirepass="swordfish") as server:
        for password, status in (("swordfish", 0), ("hunter2", 1)):
            store = {"ELICIT_STORE": server.url.replace("://", f"://:{password}@")}
            for command in (("pending", "list"), ("keys", "list")):
                end = await called(*command, home=tmp_path, extra=store)
                assert end.status == status
                assert str(server.socket) in end.out + end.err or command == ("pending", "list")
                assert password not in end.out + end.err
