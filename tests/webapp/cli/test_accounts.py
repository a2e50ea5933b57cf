"""`elicit accounts import`: lines that are imported, refused with a reason, or change nothing."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from flows.oauth.connection import Connection, lapse
from flows.providers import PersonProbe, Provider, ProviderKey
from tests.support.account_env import (
    CREDENTIALS,
    HUB,
    Network,
    connect,
    serving_accounts,
    stored,
)
from tests.support.clock import NOON, Clock
from tests.support.tenant_sites import BOOKS, SHOP
from webapp.cli.main import main
from webapp.oauth.importing import Import
from webapp.service import Service

ISSUER = "https://login.example.com"
TOKEN = "token-of-the-other-product"
DESK = Provider(
    name="desk",
    label="Desk",
    api="https://api.desk.example",
    key=ProviderKey(page="https://desk.example/keys"),
    person=PersonProbe(url="https://api.desk.example/me", id="id", label="id"),
)
OWN = Provider(
    name="own",
    label="Own",
    api="https://api.own.example",
    token="https://own.example/token",
    service_account=True,
)
ALL = {each.name: each for each in (HUB, SHOP, BOOKS, DESK, OWN)}
KEYS = dict.fromkeys(("github", "shop", "books", "own"), CREDENTIALS["github"])


def line(**change: Any) -> str:
    about: dict[str, Any] = {
        "provider": "github",
        "issuer": ISSUER,
        "subject": "ann",
        "account_id": "583231",
    }
    about |= {"label": "octocat", "access_token": TOKEN, "refresh_token": f"refresh-of-{TOKEN}"}
    about |= {"expires_at": f"{NOON.year + 1}-05-03T12:00:00Z", "scopes": ["repo"]}
    return json.dumps({k: v for k, v in (about | change).items() if v is not None})


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with serving_accounts(
        Network(), clock=Clock(), providers=ALL, credentials=KEYS
    ) as service:
        yield service


async def imported(service: Service, *lines: str, **about: Any) -> list[str]:
    run = service.kinds.accounts.importing.run
    done = await run(lines, Import(server="tea shop", **about))
    return [each.done for each in done]


async def only(service: Service) -> Connection:
    (row,) = await stored(service)
    return row


async def test_imported_account_has_all_fields_and_is_shared_with_no_tool(service: Service) -> None:
    # finding: XO9
    assert await imported(service, line(), "", line(user="bob", subject=None, issuer=None)) == [
        "imported",
        "imported",
    ]
    owners = service.elicitations.owners
    ann = owners.tag(issuer=ISSUER, subject="ann")
    bob = owners.tag_of_user("bob", application="tea shop")
    rows = {row.owner: row for row in await stored(service)}
    assert rows.keys() == {ann, bob}
    row = rows[ann]
    assert (row.provider, row.person_id, row.label) == ("github", "583231", "octocat")
    assert (row.access_token, row.refresh_token) == (TOKEN, f"refresh-of-{TOKEN}")
    assert (row.scopes, row.tools, row.is_active) == (("repo",), (), True)


async def test_second_import_overwrites_account_only_with_replaces(service: Service) -> None:
    await imported(service, line())
    before = await only(service)
    assert await imported(service, line()) == ["unchanged"]
    newer = line(access_token="another")
    assert await imported(service, newer) == ["kept"]
    assert await only(service) == before
    assert await imported(service, newer, replaces=True, is_dry=True) == ["replaced"]
    assert await only(service) == before
    assert await imported(service, newer, replaces=True) == ["replaced"]
    after = await only(service)
    assert (after.access_token, after.id, after.is_active) == ("another", before.id, True)


async def test_account_that_the_person_connected_stays_in_use(service: Service) -> None:
    account = await connect(service, "repo")
    own = await only(service)
    lines = [line(issuer="tests", subject="alice", account_id=one) for one in (account.id, "2")]
    done = await service.kinds.accounts.importing.run(lines, Import(server=own.server))
    assert [each.done for each in done] == ["kept", "imported"]
    rows = {row.person_id: row for row in await stored(service)}
    assert {row.owner for row in rows.values()} == {own.owner}
    assert rows[account.id] == own
    assert not rows["2"].is_active


async def test_lapsed_account_is_imported_again_with_new_token(service: Service) -> None:
    await imported(service, line())
    row = await only(service)
    await service.elicitations.write(lapse(row, now=NOON))
    assert (await only(service)).status == "lapsed"
    assert await imported(service, line(access_token="newer")) == ["imported"]
    after = await only(service)
    assert (after.status, after.access_token, after.id) == ("connected", "newer", row.id)


async def test_disconnected_account_is_imported_again(service: Service) -> None:
    await imported(service, line())
    row = await only(service)
    await service.kinds.accounts.keys.disconnect(row.owner, row.id)
    assert await imported(service, line()) == ["imported"]
    assert (await only(service)).status == "connected"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not a JSON object"),
        ("[]", "The line is not valid"),
        ("[" * 5000, "not valid"),
        ("x" * 70_000, "more than 65536 characters"),
        (line(access_token=None), "access_token"),
        (line(access_token="a b"), "access_token"),
        (line(account_id=7), "account_id"),
        (line(secret="x"), "unknown field"),
        (line(provider="nobody"), "The provider cannot be used here"),
        (line(provider="Git\x1bHub"), "provider: this is not the name of a provider."),
        (line(subject=None), "Name the person"),
        (line(user="bob"), "Name the person"),
        (line(issuer=None), "issuer: required"),
        (line(refresh_token=None, expires_at="2020-01-01T00:00:00Z"), "has expired"),
        (line(refresh_expires_at="2020-01-01T00:00:00Z"), "refresh token has expired"),
        (line(expires_at="2030-01-01T00:00:00"), "time zone"),
        (line(expires_at="tomorrow"), "expires_at"),
        (line(expires_at="9999-12-31T23:59:59-12:00"), "years 1 to 9999 of UTC"),
        (line(refresh_expires_at="0001-01-01T00:00:00+14:00"), "years 1 to 9999 of UTC"),
        (line(scopes=["a b"]), "scopes"),
        (line(label="a\u202eb"), "printable"),
        (line(provider="shop"), "must be like"),
        (line(provider="shop", tenant="evil.example#.shops.example"), "must be like"),
        (line(tenant="acme"), "has no tenants"),
        (line(provider="own", scopes=[]), "only this server's own account"),
        (line(details={"company": "1"}), "details"),
        (line(provider="books"), "realm_id"),
        (line()[:-1] + ', "subject": "eve"}', "two members of the same name"),
        (line()[:-1] + r', "sub\u006aect": "eve"}', "two members of the same name"),
        (line(details={"a": "1"}).replace('"a"', '"a": "2", "a"'), "two members of the same name"),
    ],
)
async def test_invalid_line_is_refused_with_reason_and_next_line_is_imported(
    service: Service, text: str, why: str
) -> None:
    done = await service.kinds.accounts.importing.run(
        [text, line(subject="bob")], Import(server="tea shop")
    )
    assert [(each.number, each.done) for each in done] == [(1, "refused"), (2, "imported")]
    assert why in (done[0].why or "")
    assert TOKEN not in (done[0].why or "")
    assert len(await stored(service)) == 1


async def test_expired_token_tenant_details_and_api_key_are_imported(
    service: Service,
) -> None:
    lines = (
        line(expires_at="2020-01-01T00:00:00Z"),
        line(
            provider="shop", tenant="red", scopes=["read"], expires_at="2030-01-01T02:00:00+02:00"
        ),
        line(provider="books", details={"realm_id": "9"}),
        line(provider="desk", refresh_token=None, expires_at=None, scopes=[]),
    )
    assert await imported(service, *lines) == ["imported"] * 4
    rows = {row.provider: row for row in await stored(service)}
    assert rows["shop"].tenant == "red.shops.example"
    assert str(rows["shop"].expires_at) == "2030-01-01 00:00:00+00:00"
    assert rows["books"].details == {"realm_id": "9"}
    for row in rows.values():
        assert service.kinds.accounts.connections.client(row) is not None


@pytest.mark.usefixtures("home")
def test_command_reports_lines_and_stores_nothing_in_a_dry_run(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELICIT_GITHUB_CLIENT_ID", "our-id")
    monkeypatch.setenv("ELICIT_GITHUB_CLIENT_SECRET", "our-secret-that-is-long")
    file = home / "accounts.jsonl"
    good = line(expires_at="2999-01-01T00:00:00Z")
    file.write_text(f"{good}\n{line(access_token='a b')}\n")
    words = ["accounts", "import", str(file), "--server", "tea shop"]
    assert main([*words, "--dry-run"]) == 1
    printed = capsys.readouterr()
    assert "Dry run: 1 imported." in printed.out
    assert "Line 2: The line is not valid" in printed.err
    assert TOKEN not in printed.out + printed.err
    file.write_text(good + "\n")
    assert main(words) == 0
    assert "1 imported." in capsys.readouterr().out
    assert main(words) == 0
    assert "1 unchanged." in capsys.readouterr().out
    assert main([*words[:2], str(home / "none"), *words[3:]]) == 1
