"""`elicit export` and `elicit purge`: one person's data, told or erased, and nobody else's."""

from pathlib import Path

import msgspec
import pytest
from mcp.server.mcpserver import MCPServer

from flows import elicit
from tests.support.account_env import stored
from tests.support.chains import told_of
from tests.support.cli import called
from tests.support.mcp_sandbox import KEY, caller_at_sandbox
from tests.support.records import record, scanned
from tests.support.renewing import connected, down, the_one
from tests.support.shop_env import Shop, buying
from webapp.cli.export import Export, export_owner
from webapp.cli.purge import purge_owner
from webapp.command import CommandRefused
from webapp.service import Service
from webapp.stores import open_store


async def kinds_of(service: Service, owner: str) -> set[str]:
    rows = await scanned(service.elicitations.store)
    return {each.kind for each in rows if each.owner == owner}


async def exported(service: Service, owner: str) -> str:
    return msgspec.json.encode(await export_owner(service, owner)).decode()


async def test_an_export_has_accounts_without_their_keys(tmp_path: Path) -> None:
    async with connected(tool="list") as (service, _, _):
        kept = await the_one(service)
        told: Export = await export_owner(service, kept.owner[:6])
        (account,) = told.accounts
        assert (account["provider"], account["label"]) == ("github", "octocat")
        assert (account["tools"], account["status"]) == (("list",), "connected")
        assert [each["tool"] for each in told.questions] == ["list"]
        text = await exported(service, kept.owner)
        assert kept.access_token not in text
        assert kept.owner not in text.replace(told.questions[0]["id"], "")


async def test_a_purge_says_what_there_is_and_erases_nothing_until_it_is_sure() -> None:
    async with connected(tool="list") as (service, network, _):
        kept = await the_one(service)
        before = await scanned(service.elicitations.store)
        said = await purge_owner(service, kept.owner, is_sure=False)
        assert "1 account" in said[0]
        assert said[-1] == "Nothing was erased. Add --yes to erase the former."
        assert await scanned(service.elicitations.store) == before
        assert network.revoked == []


async def test_a_purge_gives_accounts_back_at_their_provider_and_erases_all() -> None:
    async with connected(tool="list") as (service, network, _):
        kept = await the_one(service)
        others = [
            each for each in await scanned(service.elicitations.store) if each.owner != kept.owner
        ]
        said = await purge_owner(service, kept.owner, is_sure=True)
        assert "octocat at github is disconnected." in said
        assert ["key-1-of-octocat" in body for body in network.revoked] == [True]
        assert await stored(service) == []
        assert await kinds_of(service, kept.owner) == {"audit", "data key"}
        assert (await told_of(service, kept.owner))[-1].what == "erased"
        left = await scanned(service.elicitations.store)
        assert [each for each in left if each.owner != kept.owner] == others


async def test_a_provider_that_cannot_be_told_is_named_with_what_is_left_to_do() -> None:
    async with connected(tool="list") as (service, network, _):
        network.revokes = down
        kept = await the_one(service)
        said = await purge_owner(service, kept.owner, is_sure=True)
        assert any("github was not told of octocat: the person can end it" in one for one in said)
        assert await stored(service) == []


async def test_what_was_paid_stays_and_a_late_payment_finds_its_question(shop: Shop) -> None:
    async with buying(shop) as buy:
        await buy.pay()
        await buy.result()
        _ = buy.caller.call("report", topic="coffee")
        there = await buy.person.go_on(await buy.caller.link())
        (payment,) = await shop.payments()
        owner = payment.owner
        said = await purge_owner(shop.service, owner, is_sure=True)
        assert any("of payments stay, without a name" in one and "1 payment" in one for one in said)
        kinds = {"audit", "data key", "elicitation", "payment", "hook"}
        assert await kinds_of(shop.service, owner) == kinds
        assert sorted(await shop.statuses()) == ["accepted", "cancelled"]
        await buy.person.press_there(there, "card")
        assert await shop.tell_all() == ["late"]
        assert sorted(await shop.ledger()) == ["open", "spent"]
        told = await export_owner(shop.service, owner)
        assert [each["amount"] for each in told.payments] == [900, 900]


async def test_what_was_typed_in_secret_is_in_no_export() -> None:
    server = MCPServer("keys")

    @server.tool()
    async def keep() -> str:
        await elicit.secret("The key of the tea room", name="tea")
        return "kept"

    async with caller_at_sandbox(server, "legacy") as (at, caller):
        result = caller.call("keep")
        await at.guest.type(await caller.link())
        assert "kept" in (await result).model_dump_json()
        (asked,) = await at.env.elicitations()
        text = await exported(at.env.service, asked.owner)
        assert '"secrets":[{"status":"kept"}]' in text
        assert "The key of the tea room" in text
        assert KEY not in text


async def test_who_is_meant_is_exact_or_nobody(tmp_path: Path) -> None:
    async with connected(tool="list") as (service, _, _):
        kept = await the_one(service)
        with pytest.raises(CommandRefused, match="Nothing was ever kept for that subject"):
            await export_owner(service, "https://login.example#ann")
        with pytest.raises(CommandRefused, match="There is no owner zzzzzz"):
            await purge_owner(service, "zzzzzz", is_sure=True)
        assert (await export_owner(service, kept.owner)).accounts


async def test_the_commands_are_there(tmp_path: Path) -> None:
    for name in ("export", "purge"):
        refused = await called(name, "--owner", "zzzzzz", home=tmp_path)
        assert (refused.status, "There is no owner zzzzzz" in refused.err) == (1, True)
    nobody = await called("export", home=tmp_path)
    assert nobody.status == 2


async def test_a_vacuum_makes_the_file_smaller_while_others_have_it_open(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path / 'store.db'}"
    store = await open_store(address)
    for number in range(60):
        await store.write(record(f"a-{number}", sealed=bytes(60_000)))
    await store.erase(owner="a")
    await store.write(record("a-new"))
    extra = {"ELICIT_STORE": address, "ELICIT_SECRET": "a" * 32}
    said = await called("vacuum", home=tmp_path, extra=extra)
    assert said.status == 0, said.err
    before, after = (float(word) for word in said.out.split() if word[0].isdigit())
    assert (before > 3, after < 1) == (True, True)
    assert await store.read("a", "elicitation", "a-new") is not None
    await store.write(record("a-newer"))
    await store.aclose()
    nothing = await called("vacuum", home=tmp_path, extra={"ELICIT_STORE": "memory:"})
    assert (nothing.status, "keeps no room for what was erased" in nothing.err) == (1, True)
