"""The report on access to a store's server: roles that can write, and unencrypted connections."""

from pathlib import Path

import pytest

from tests.support.postgres_server import shared_server
from tests.support.valkey_server import fresh_valkey
from webapp.cli.doctor import examine_store
from webapp.cli.examination import Finding
from webapp.http.client import Outbound
from webapp.settings.settings import read_settings
from webapp.stores.postgres import open_store
from webapp.stores.postgres_server import of_encryption
from webapp.stores.valkey.address import parse_address


async def access_of(url: str, home: Path) -> list[Finding]:
    settings = read_settings({"HOME": str(home), "ELICIT_STORE": url})
    found = await examine_store(settings, outbound=Outbound.none())
    return [each for each in found if each.subject == "access"]


# finding: XS9
async def test_other_role_with_write_access_to_store_is_named() -> None:
    server = shared_server()
    async with server.database() as url:
        name = url.partition("@/")[2].partition("?")[0]
        own, other, reader = (f"{name}_{each}" for each in ("own", "other", "reader"))
        for role in (own, other, reader):
            await server.execute(f"CREATE ROLE {role} LOGIN")
        await server.execute(f"ALTER DATABASE {name} OWNER TO {own}")
        store = await open_store(server.url(name, user=own))
        assert (await store.access())[0] == (
            f"only its role {own} and superusers can write to the store",
            None,
        )
        await store._server.fetch("check")
        grants = {other: "GRANT UPDATE (sealed)", reader: "GRANT SELECT"}
        async with store._server.connection() as connection:
            for role, grant in grants.items():
                await connection.execute(f"{grant} ON elicit_records TO {role}")
        says, fix = (await store.access())[0]
        assert says == f"other roles can write to the store too: {other}"
        assert "docs/explanation/threats.md" in (fix or "")
        await store.aclose()


async def test_superuser_connection_is_a_note_with_advice_to_use_separate_role(
    tmp_path: Path,
) -> None:
    # finding: XS9
    async with shared_server().database() as url:
        who, way = await access_of(url, tmp_path)
    assert (who.standing, way.standing) == ("note", "ok")
    assert "is a superuser of the database server" in who.says
    assert "without SUPERUSER" in (who.fix or "")
    assert way.says == "the connection does not leave this machine"


# finding: XS9
@pytest.mark.parametrize(
    ("client", "is_encrypted", "says"),
    [
        (None, False, "does not leave this machine"),
        ("127.0.0.1", False, "does not leave this machine"),
        ("::1", False, "does not leave this machine"),
        ("10.0.0.7", True, "the connection is encrypted"),
        ("10.0.0.7", False, "is not encrypted, and it leaves this machine"),
        ("1127.0.0.1", False, "is not encrypted, and it leaves this machine"),
    ],
)
def test_connection_beyond_loopback_without_tls_is_a_warning(
    client: str | None, is_encrypted: bool, says: str
) -> None:
    row = {"client": client, "is_encrypted": is_encrypted}
    message, fix = of_encryption(row, url="postgresql://db/elicit", is_pooled=False)
    assert says in message
    assert (fix is not None) == ("not encrypted" in says)


def test_pooled_connection_without_sslmode_in_address_is_a_warning() -> None:
    # finding: XS9
    row = {"client": "127.0.0.1", "is_encrypted": True}
    url = "postgresql://pooler/elicit"
    assert of_encryption(row, url=url, is_pooled=True)[1] is not None
    assert of_encryption(row, url=f"{url}?sslmode=verify-full", is_pooled=True)[1] is None


# finding: XS9
@pytest.mark.parametrize(
    ("url", "stays", "is_encrypted"),
    [
        ("valkey://127.0.0.1:6379/0", True, False),
        ("valkey://localhost", True, False),
        ("valkey:///run/valkey.sock?db=0", True, False),
        ("valkey://cache.example.com:6379/0", False, False),
        ("valkeys://cache.example.com:6379/0", False, True),
    ],
)
def test_valkey_address_reports_local_and_encrypted_connections(
    url: str, stays: bool, is_encrypted: bool
) -> None:
    address = parse_address(url)
    assert (address.is_on_this_machine, address.is_encrypted) == (stays, is_encrypted)


async def test_valkey_connection_as_default_user_is_a_note(tmp_path: Path) -> None:
    # finding: XS9
    found = await access_of(fresh_valkey().url, tmp_path)
    assert [each.standing for each in found] == ["note", "ok"]
    assert "the user default" in found[0].says
