"""`elicit export` and `elicit purge`: only the named person's data is exported or erased."""

from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from mcp.server.mcpserver import MCPServer

from flows import elicit
from flows.crypto.tokens import Ring
from flows.errors import StoreUnavailable, Unreadable
from flows.oauth.connection import Connection
from tests.support.account_env import stored
from tests.support.cli import called
from tests.support.clock import Clock
from tests.support.mcp_sandbox import KEY, caller_at_sandbox
from tests.support.records import record, scanned
from tests.support.renewing import connected, down, the_one
from tests.support.rotation import Interrupted
from tests.support.service_env import asked, process
from tests.support.shop_env import Shop, buying
from webapp.cli.export import Export, export_owner
from webapp.cli.purge import purge_owner
from webapp.command import CommandRefused
from webapp.records.owners import DATA_KEY, open_owners, unwrapped
from webapp.records.rows import Rows
from webapp.records.values import StoredWebhook
from webapp.service import Service
from webapp.stores import open_store


async def kinds_of(service: Service, owner: str) -> set[str]:
    rows = await scanned(service.elicitations.store)
    return {each.kind for each in rows if each.owner == owner}


async def data_keys_of(service: Service, owner: str) -> tuple[bytes, ...]:
    owners = service.elicitations.owners
    record = await owners.store.read(owner, DATA_KEY, owner)
    assert record is not None
    found = unwrapped(owners.ring, record)
    return (*found.keys, *found.former)


async def hooks_of(service: Service, owner: str) -> list[StoredWebhook]:
    return list(await service.elicitations.rows.all(StoredWebhook, owner=owner))


async def exported(service: Service, owner: str) -> str:
    return msgspec.json.encode(await export_owner(service, owner)).decode()


async def test_export_contains_accounts_without_access_tokens(tmp_path: Path) -> None:
    async with connected(tool="list") as (service, _, _):
        stored = await the_one(service)
        reported: Export = await export_owner(service, stored.owner[:6])
        (account,) = reported.accounts
        assert (account["provider"], account["label"]) == ("github", "octocat")
        assert (account["tools"], account["status"]) == (("list",), "connected")
        assert [each["tool"] for each in reported.questions] == ["list"]
        text = await exported(service, stored.owner)
        assert stored.access_token not in text
        assert stored.owner not in text.replace(reported.questions[0]["id"], "")


async def test_export_leaves_out_an_unreadable_question() -> None:
    async with connected(tool="list") as (service, _, _):
        stored, store = await the_one(service), service.elicitations.store
        (question,) = [each for each in await scanned(store) if each.kind == "elicitation"]
        await store.write(msgspec.structs.replace(question, sealed=question.sealed[::-1]))
        reported = await export_owner(service, stored.owner)
        assert reported.questions == []
        assert [account["label"] for account in reported.accounts] == ["octocat"]


async def test_purge_without_confirmation_lists_data_and_erases_nothing() -> None:
    async with connected(tool="list") as (service, network, _):
        account = await the_one(service)
        before = await scanned(service.elicitations.store)
        lines = await purge_owner(service, account.owner, is_sure=False)
        assert "1 account" in lines[0]
        assert lines[-1] == "Nothing was erased. Add --yes to erase the first list."
        assert await scanned(service.elicitations.store) == before
        assert network.revoked == []


async def test_purge_revokes_accounts_and_erases_data_of_owner_only() -> None:
    async with connected(tool="list") as (service, network, _):
        account = await the_one(service)
        others = [
            each
            for each in await scanned(service.elicitations.store)
            if each.owner != account.owner
        ]
        lines = await purge_owner(service, account.owner, is_sure=True)
        assert "octocat at github is disconnected." in lines
        assert ["key-1-of-octocat" in body for body in network.revoked] == [True]
        assert await stored(service) == []
        assert await kinds_of(service, account.owner) == {"data key"}
        left = await scanned(service.elicitations.store)
        assert [each for each in left if each.owner != account.owner] == others


async def test_purge_names_unreachable_provider_and_remaining_step() -> None:
    async with connected(tool="list") as (service, network, _):
        network.revokes = down
        account = await the_one(service)
        lines = await purge_owner(service, account.owner, is_sure=True)
        assert any(
            "github could not be asked to disconnect octocat: the person can remove the access"
            in one
            for one in lines
        )
        assert await stored(service) == []


async def test_purge_keeps_payments_and_late_payment_is_matched(shop: Shop) -> None:
    async with buying(shop) as buy:
        await buy.pay()
        await buy.result()
        _ = buy.caller.call("report", topic="coffee")
        there = await buy.person.go_on(await buy.caller.link())
        (payment,) = await shop.payments()
        owner = payment.owner
        lines = await purge_owner(shop.service, owner, is_sure=True)
        assert any(
            "of payments will stay, without a name" in one and "1 payment" in one for one in lines
        )
        assert await kinds_of(shop.service, owner) == {"data key", "elicitation", "payment", "hook"}
        assert sorted(await shop.statuses()) == ["accepted", "cancelled"]
        await buy.person.press_there(there, "card")
        assert await shop.send_all() == ["late"]
        assert sorted(await shop.ledger()) == ["open", "spent"]
        reported = await export_owner(shop.service, owner)
        assert [each["amount"] for each in reported.payments] == [900, 900]


async def test_webhook_body_is_exported_and_erased_by_purge(shop: Shop) -> None:
    async with buying(shop) as buy:
        await buy.pay()
        await buy.result()
        (payment,) = await shop.payments()
        (hook,) = await hooks_of(shop.service, payment.owner)
        (reported,) = (await export_owner(shop.service, payment.owner)).webhooks
        assert (reported["session"], reported["body"]) == (payment.session, hook.body)
        await purge_owner(shop.service, payment.owner, is_sure=True)
        (left,) = await hooks_of(shop.service, payment.owner)
        assert left.body == ""
        assert (left.event, left.session) == (hook.event, hook.session)
        # A replay of the event works without the erased body, and changes nothing.
        replayed = await shop.service.webhooks.replay(left)
        assert replayed.status == hook.status
        assert await shop.ledger() == ["spent"]


async def test_purge_keeps_body_of_waiting_webhook(shop: Shop) -> None:
    async with buying(shop) as buy:
        await buy.pay()
        await buy.result()
        (payment,) = await shop.payments()
        (hook,) = await hooks_of(shop.service, payment.owner)
        waiting = msgspec.structs.replace(hook, status="waiting", transition=None)
        await shop.service.elicitations.write(waiting)
        lines = await purge_owner(shop.service, payment.owner, is_sure=True)
        assert any("in 1 record of waiting webhooks" in one for one in lines), lines
        (left,) = await hooks_of(shop.service, payment.owner)
        assert left.body == hook.body


async def test_second_purge_destroys_old_data_key() -> None:
    async with connected(tool="list") as (service, _, clock):
        stored = await the_one(service)
        copy = await scanned(service.elicitations.store)
        (before,) = await data_keys_of(service, stored.owner)
        lines = await purge_owner(service, stored.owner, is_sure=True)
        assert "it destroys the old key." in lines[-1]
        assert (await data_keys_of(service, stored.owner))[1:] == (before,)
        clock.tick(minutes=10)
        lines = await purge_owner(service, stored.owner, is_sure=True)
        assert "The data is erased." in lines[-1]
        (after,) = await data_keys_of(service, stored.owner)
        assert after != before
        (account,) = [each for each in copy if each.id == stored.id]
        with pytest.raises(Unreadable):
            await service.elicitations.rows.open(account, Connection)


async def test_record_written_with_old_data_key_is_readable_until_next_purge() -> None:
    async with connected(tool="list") as (service, _, clock):
        account, store = await the_one(service), service.elicitations.store
        deaf = await open_owners(store=store, ring=service.elicitations.owners.ring)
        await deaf.locker(account.owner)
        await purge_owner(service, account.owner, is_sure=True)
        await Rows(deaf).write(msgspec.structs.replace(account, version=0))
        assert (await the_one(service)).access_token == account.access_token
        clock.tick(minutes=10)
        await purge_owner(service, account.owner, is_sure=True)
        assert await kinds_of(service, account.owner) == {"data key"}
        await Rows(service.elicitations.owners).write(msgspec.structs.replace(account, version=0))
        assert (await the_one(service)).access_token == account.access_token


async def test_payment_is_readable_after_old_data_key_is_destroyed(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        await buy.pay()
        await buy.result()
        (payment,) = await shop.payments()
        service, owner = shop.service, payment.owner
        (before,) = await data_keys_of(service, owner)
        for minutes in (0, 10):
            shop.clock.tick(minutes=minutes)
            await purge_owner(service, owner, is_sure=True)
        assert before not in await data_keys_of(service, owner)
        assert [each["amount"] for each in (await export_owner(service, owner)).payments] == [900]


@pytest.mark.parametrize("written", range(6))
async def test_interrupted_purge_is_completed_by_repeating_command(
    clock: Clock, written: int
) -> None:
    store = Interrupted()
    async with process(store, clock, ring=Ring([b"a" * 32])) as service:
        purged, others = await asked(service), await asked(service, subject="bob")
        (before,) = await data_keys_of(service, purged.owner)
        store.left = written
        for minutes in (0, 10, 10):
            clock.tick(minutes=minutes)
            with suppress(StoreUnavailable):
                await purge_owner(service, purged.owner, is_sure=True)
            store.left = 1000
        assert before not in await data_keys_of(service, purged.owner)
        assert await kinds_of(service, purged.owner) == {"data key"}
        assert await service.elicitations.get(others.id) is not None


async def test_export_does_not_contain_typed_secret() -> None:
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


async def test_unknown_owner_or_subject_is_refused(tmp_path: Path) -> None:
    async with connected(tool="list") as (service, _, _):
        account = await the_one(service)
        with pytest.raises(CommandRefused, match="Nothing was ever stored for that subject"):
            await export_owner(service, "https://login.example#ann")
        with pytest.raises(CommandRefused, match="owner zzzzzz: elicit questions list "):
            await purge_owner(service, "zzzzzz", is_sure=True)
        assert (await export_owner(service, account.owner)).accounts


async def test_export_and_purge_refuse_unknown_owner_with_status_1(tmp_path: Path) -> None:
    for name in ("export", "purge"):
        refused = await called(name, "--owner", "zzzzzz", home=tmp_path)
        assert (refused.status, "There is no owner zzzzzz" in refused.err) == (1, True)
    nobody = await called("export", home=tmp_path)
    assert nobody.status == 2


async def test_vacuum_shrinks_store_file_opened_by_another_process(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path / 'store.db'}"
    store = await open_store(address)
    for number in range(60):
        await store.write(record(f"a-{number}", sealed=bytes(60_000)))
    await store.erase(owner="a")
    await store.write(record("a-new"))
    extra = {"ELICIT_STORE": address, "ELICIT_SECRET": "a" * 32}
    result = await called("vacuum", home=tmp_path, extra=extra)
    assert result.status == 0, result.err
    before, after = (float(word) for word in result.out.split() if word[0].isdigit())
    assert (before > 3, after < 1) == (True, True)
    assert await store.read("a", "elicitation", "a-new") is not None
    await store.write(record("a-newer"))
    await store.aclose()
    nothing = await called("vacuum", home=tmp_path, extra={"ELICIT_STORE": "memory:"})
    assert (nothing.status, "does not reserve the space of erased data" in nothing.err) == (1, True)
