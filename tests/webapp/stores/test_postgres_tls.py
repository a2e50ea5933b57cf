"""PostgreSQL over TLS: with `sslmode=verify-full`, an untrusted certificate is refused."""

import os
from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from flows.errors import StoreUnavailable
from tests.support.certificates import Holder, issued
from tests.support.postgres_server import NOBODY, USER, PostgresServer
from tests.support.records import record
from tests.support.serving import free_port
from webapp.stores.postgres import open_store

SINCE, UNTIL = datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)


def authority(name: str) -> Holder:
    return issued(name, since=SINCE, until=UNTIL, is_authority=True)


@pytest.fixture(scope="module")
def root() -> Holder:
    return authority("a root")


@pytest.fixture(scope="module")
def server(root):
    server = PostgresServer()
    holder = issued("localhost", by=root, since=SINCE, until=UNTIL)
    key = holder.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for name, content in (("server.crt", holder.pem), ("server.key", key)):
        file = server.data / name
        file.write_bytes(content)
        file.chmod(0o600)
        if os.geteuid() == 0:
            os.chown(file, NOBODY, NOBODY)
    server.port = free_port()
    server.set({"ssl": "on", "listen_addresses": "'127.0.0.1'", "port": f"{server.port}"})
    server.start()
    yield server
    server.remove()


@pytest.fixture
async def address(server):
    async with server.database() as url:
        name = url.partition("@/")[2].partition("?")[0]
        yield f"postgresql://{USER}@localhost:{server.port}/{name}"


async def test_server_with_certificate_from_named_root_is_accepted(address, root, tmp_path):
    (tmp_path / "root.pem").write_bytes(root.pem)
    store = await open_store(f"{address}?sslmode=verify-full&sslrootcert={tmp_path}/root.pem")
    other = await open_store(f"{address}?sslmode=require")
    (written,) = await store.write(record())
    assert await other.read("a", "elicitation", "a-1") == written
    await store.aclose()
    await other.aclose()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_server_with_untrusted_certificate_is_refused_with_options_to_set(
    address, root, tmp_path, host
):
    vouches = authority("another root") if host == "localhost" else root
    (tmp_path / "root.pem").write_bytes(vouches.pem)
    asked = address.replace("localhost", host)
    with pytest.raises(StoreUnavailable) as refused:
        await open_store(f"{asked}?sslmode=verify-full&sslrootcert={tmp_path}/root.pem")
    assert "set sslmode and sslrootcert in the address" in refused.value.why


# finding: XV3
async def test_sslrootcert_system_uses_system_certificate_authorities(
    address, root, tmp_path, monkeypatch
):
    (tmp_path / "root.pem").write_bytes(root.pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "root.pem"))
    store = await open_store(f"{address}?sslmode=verify-full&sslrootcert=system")
    await store.check()
    await store.aclose()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    with pytest.raises(StoreUnavailable, match="certificate verify failed"):
        await open_store(f"{address}?sslrootcert=system")
    with pytest.raises(StoreUnavailable, match="sslrootcert=system needs sslmode=verify-full"):
        await open_store(f"{address}?sslmode=require&sslrootcert=system")


# finding: XV3
async def test_missing_root_certificate_error_suggests_sslrootcert_system(
    address, tmp_path, monkeypatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(StoreUnavailable) as refused:
        await open_store(f"{address}?sslmode=verify-full")
    assert "root certificate file" in refused.value.why
    assert "does not exist" in refused.value.why
    assert "sslrootcert=system" in refused.value.why
