"""Several accounts of one person at one provider: which one is used, shown and recorded."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest

from flows.elicitation.states import Elicitation, Status
from flows.errors import Expired, Failed
from flows.oauth.connection import Connection
from flows.oauth.provider import PersonProbe
from tests.support.account_env import (
    HUB,
    OCTOCAT,
    Asking,
    Network,
    come_home,
    connect,
    give_up,
    opened,
    press_allow,
    serving_accounts,
    status_of,
    stored,
)
from tests.support.clock import Clock
from webapp.oauth.connections import BEGUN_AT_MOST
from webapp.pages.builder import PageBuilder
from webapp.pages.views import DoneAccount, StartAccount, UseAccount
from webapp.routes.connections import start_reconnecting
from webapp.routes.redirect import depart
from webapp.service import Service
from webapp.stores import Conflict, Record
from webapp.stores.sqlite import MemoryStore

HUBBER = {"id": 480938, "login": "hubber", "name": "Hub Ber"}


async def row(service: Service, label: str) -> Connection:
    (found,) = [each for each in await stored(service) if each.label == label]
    return found


async def both_connected(service: Service, network: Network) -> None:
    """Connect octocat for the tool `list`, then hubber for `export`.

    Hubber is in use afterwards.
    """
    network.person = OCTOCAT
    await connect(service, "repo", tool="list")
    network.person = HUBBER
    await connect(service, "repo", tool="export")


async def page(service: Service, elicitation: Elicitation) -> object:
    current = await service.elicitations.get(elicitation.id)
    assert current is not None
    return await PageBuilder(service, current, here="/e/x", csrf="c").view(is_bound=False)


async def asks_nothing(service: Service, *scopes: str, label: str, **about: object) -> None:
    asked = Asking(service, *scopes, **about)  # type: ignore[arg-type]
    assert (await asked.account()).label == label
    assert not asked.has_asked


async def test_account_is_found_by_name_although_another_is_active() -> None:
    async with serving_accounts(network := Network()) as service:
        await both_connected(service, network)
        await asks_nothing(service, "repo", label="octocat", tool="list", account="octocat")
        await asks_nothing(service, "repo", label="octocat", tool="list", account="583231")
        await asks_nothing(service, "repo", label="hubber", tool="export")
        # A tool that names an account still needs the person's permission to use the account.
        asked = Asking(service, "repo", tool="export", account="octocat")
        view = await page(service, await asked.elicitation())
        assert isinstance(view, UseAccount)
        assert [choice.person.label for choice in view.choices] == ["octocat"]
        assert view.other_action is None
        await press_allow(service, await asked.elicitation())
        assert (await asked.account()).label == "octocat"
        # Naming an account does not change the account in use.
        assert (await row(service, "hubber")).is_active


async def test_account_connected_by_name_does_not_replace_active_account() -> None:
    async with serving_accounts(network := Network()) as service:
        await connect(service, "repo", tool="list")
        network.person = HUBBER
        await connect(service, "repo", tool="export", account="hubber")
        await asks_nothing(service, "repo", label="octocat", tool="list", arguments=2)
        await asks_nothing(service, "repo", label="hubber", tool="export", account="hubber")
        assert (await row(service, "hubber")).replaced_id is None


async def test_account_chosen_on_start_page_becomes_active() -> None:
    async with serving_accounts(network := Network()) as service:
        await both_connected(service, network)
        asked = Asking(service, "repo", tool="third")
        elicitation = await asked.elicitation()
        view = await page(service, elicitation)
        assert isinstance(view, UseAccount)
        assert [choice.person.label for choice in view.choices] == ["hubber", "octocat"]
        assert view.other_action == "/e/x"
        account = parse_qs(urlsplit(view.choices[1].allow_action).query)["account"][0]
        await service.kinds.accounts.share(elicitation, account=account)
        assert (await asked.account()).label == "octocat"
        await asks_nothing(service, "repo", label="octocat", tool="third", arguments="again")
        assert (await row(service, "octocat")).is_active
        assert not (await row(service, "hubber")).is_active


async def test_accounts_without_needed_scopes_are_not_offered() -> None:
    async with serving_accounts(network := Network()) as service:
        network.scopes = "repo,gist"
        await connect(service, "repo", "gist", tool="list")
        network.person, network.scopes = HUBBER, "repo"
        await connect(service, "repo", tool="export")
        asked = Asking(service, "gist", tool="third")
        elicitation = await asked.elicitation()
        (offered,) = await service.kinds.accounts.offers(elicitation)
        assert offered.label == "octocat"
        # A new authorization includes the scopes of the account in use.
        assert service.kinds.accounts.terms(elicitation).asked() == ("gist", "repo")
        await give_up(asked)


async def test_named_account_is_requested_with_all_its_granted_scopes() -> None:
    async with serving_accounts(network := Network()) as service:
        network.scopes = "repo,gist"
        await connect(service, "repo", "gist", tool="list")
        network.person, network.scopes = HUBBER, "repo"
        await connect(service, "repo", tool="export")
        asked = Asking(service, "workflow", tool="third", account="octocat")
        terms = service.kinds.accounts.terms(await asked.elicitation())
        assert terms.asked() == ("workflow", "repo", "gist")
        await give_up(asked)


async def test_choosing_another_account_asks_provider_for_account_selection() -> None:
    async with serving_accounts(network := Network()) as service:
        await both_connected(service, network)
        asked = Asking(service, "repo", tool="third")
        elicitation = await asked.elicitation()
        there = {
            switches: parse_qs(
                urlsplit(await depart(service, elicitation, cookie="c", switches=switches)).query
            )
            for switches in (False, True)
        }
        assert there[True]["prompt"] == ["select_account"]
        assert "prompt" not in there[False]
        await give_up(asked)
        named = Asking(service, "repo", tool="third", account="third")
        url = await depart(service, await named.elicitation(), cookie="c", switches=True)
        assert parse_qs(urlsplit(url).query)["login"] == ["third"]
        await give_up(named)


async def test_different_person_than_before_is_shown_with_switch_back() -> None:
    async with serving_accounts(network := Network()) as service:
        await connect(service, "repo", tool="list")
        network.person = HUBBER
        asked = Asking(service, "repo", "gist", tool="list", arguments="more")
        elicitation, state = await opened(service, asked)
        await come_home(service, state)
        assert (await asked.account()).label == "hubber"
        view = await page(service, elicitation)
        assert isinstance(view, DoneAccount)
        assert view.switch_back is not None
        assert (view.person.label, view.switch_back.former.label) == ("hubber", "octocat")
        octocat = await row(service, "octocat")
        action = f"/e/x/allow?account={octocat.id.removeprefix(octocat.owner)}"
        assert (view.switch_back.action, view.switch_back.csrf) == (action, "c")
        done = await service.elicitations.get(elicitation.id)
        assert done is not None
        await service.kinds.accounts.share(done, account="somebody else's")
        assert not (await row(service, "octocat")).is_active
        await press_switch(service, done, octocat)
        assert (await row(service, "octocat")).is_active
        view = await page(service, elicitation)
        assert isinstance(view, DoneAccount)
        assert (view.person.label, view.switch_back) == ("octocat", None)
        await asks_nothing(service, "repo", label="octocat", tool="list", arguments="after")


async def press_switch(service: Service, done: Elicitation, former: Connection) -> None:
    await service.kinds.accounts.share(done, account=former.id.removeprefix(former.owner))


async def test_page_after_switching_back_shows_former_account_as_active() -> None:
    clock = Clock()
    async with serving_accounts(network := Network(), clock=clock) as service:
        await connect(service, "repo", tool="list")
        network.person = HUBBER
        asked = Asking(service, "repo", tool="export")
        elicitation, state = await opened(service, asked)
        await give_up(asked)  # the next call receives the answer
        await come_home(service, state)
        done = await service.elicitations.get(elicitation.id)
        assert done is not None
        clock.tick(seconds=1)
        await press_switch(service, done, await row(service, "octocat"))
        view = await page(service, elicitation)
        assert isinstance(view, DoneAccount)
        assert view.switch_back is not None
        assert (view.person.label, view.switch_back.former.label) == ("hubber", "octocat")
        assert (view.switch_back.is_done, view.switch_back.action) == (True, None)
        with pytest.raises(Failed, match="now uses another account"):  # not shared with "export"
            await Asking(service, "repo", tool="export").account()


async def test_reconnecting_same_person_shows_no_switch_back() -> None:
    async with serving_accounts(Network()) as service:
        await connect(service, "repo", tool="list")
        asked = Asking(service, "repo", "gist", tool="export")
        elicitation, state = await opened(service, asked)
        await come_home(service, state)
        await asked.account()
        view = await page(service, elicitation)
        assert isinstance(view, DoneAccount)
        assert view.switch_back is None


async def test_page_of_another_question_does_not_show_former_account() -> None:
    async with serving_accounts(network := Network()) as service:
        await both_connected(service, network)
        asked = Asking(service, "repo", tool="third")
        elicitation = await asked.elicitation()
        await press_allow(service, elicitation)
        await asked.account()
        view = await page(service, elicitation)
        assert isinstance(view, DoneAccount)
        assert (view.person.label, view.switch_back) == ("hubber", None)
        done = await service.elicitations.get(elicitation.id)
        assert done is not None
        await press_switch(service, done, await row(service, "octocat"))
        assert (await row(service, "hubber")).is_active


async def test_disconnected_account_is_not_shown_as_former() -> None:
    async with serving_accounts(network := Network()) as service:
        await connect(service, "repo", tool="list")
        octocat = await row(service, "octocat")
        network.person = HUBBER
        asked = Asking(service, "repo", tool="export")
        elicitation, state = await opened(service, asked)
        await come_home(service, state)
        await asked.account()
        await service.kinds.accounts.keys.disconnect(octocat.owner, octocat.id)
        view = await page(service, elicitation)
        assert isinstance(view, DoneAccount)
        assert view.switch_back is None


async def test_owner_sees_all_of_their_own_accounts_and_no_others() -> None:
    async with serving_accounts(network := Network()) as service:
        await both_connected(service, network)
        await connect(service, "repo", subject="bob")
        accounts = service.kinds.accounts
        alice = (await row(service, "octocat")).owner
        listed = await accounts.connections.all_of(alice)
        assert [(one.label, one.is_active) for one in listed] == [
            ("hubber", True),
            ("octocat", False),
        ]
        assert await accounts.connections.all_of("nobody") == ()


async def test_list_of_accounts_can_exceed_page_of_store() -> None:
    async with serving_accounts(Network()) as service:
        await connect(service, "repo")
        (one,) = await stored(service)
        clones = [
            Connection(
                **{
                    **{name: getattr(one, name) for name in one.__struct_fields__},
                    "id": f"{one.owner}{n:03}",
                    "is_active": False,
                    "version": 0,
                }
            )
            for n in range(205)
        ]
        for clone in clones:
            await service.elicitations.write(clone)
        assert len(await service.kinds.accounts.connections.all_of(one.owner)) == 206


async def test_unshared_tool_asks_again() -> None:
    async with serving_accounts(Network()) as service:
        await connect(service, "repo", tool="list")
        one = await row(service, "octocat")
        await service.kinds.accounts.connections.unshare(one.owner, one.id, "list")
        await service.kinds.accounts.connections.unshare(one.owner, one.id, "list")
        one = await row(service, "octocat")
        assert (one.tools, one.used) == ((), {})
        asked = Asking(service, "repo", tool="list", arguments="again")
        assert isinstance(await page(service, await asked.elicitation()), UseAccount)
        await give_up(asked)
        await service.kinds.accounts.connections.unshare(one.owner, "nobody's", "list")


async def test_switching_activates_account_and_is_idempotent() -> None:
    async with serving_accounts(network := Network()) as service:
        await both_connected(service, network)
        accounts, octocat = service.kinds.accounts, await row(service, "octocat")
        switched = await accounts.connections.switch(octocat.owner, octocat.id)
        assert switched is not None
        assert switched.is_active
        assert await accounts.connections.switch(octocat.owner, octocat.id) == switched
        assert not (await row(service, "hubber")).is_active
        assert await accounts.connections.switch(octocat.owner, "nobody's") is None
        assert await accounts.connections.switch("nobody", octocat.id) is None
        both = [(await row(service, label)).id for label in ("octocat", "hubber")]
        await asyncio.gather(*(accounts.connections.switch(octocat.owner, id) for id in both * 5))
        assert [one.is_active for one in await stored(service)].count(True) == 1


async def unfetched(service: Service, **about: object) -> None:
    """Answer a question whose client has given up, so that no call receives the answer."""
    asked = Asking(service, "repo", **about)  # type: ignore[arg-type]
    elicitation, state = await opened(service, asked)
    await give_up(asked)
    await come_home(service, state)
    found = await service.elicitations.get(elicitation.id)
    assert found is not None
    assert (found.status, found.take) == (Status.ACCEPTED, None)


async def test_acceptance_of_another_question_does_not_change_stored_answer() -> None:
    clock = Clock()
    async with serving_accounts(network := Network(), clock=clock) as service:
        await unfetched(service, tool="list")
        clock.tick(seconds=1)
        network.person = HUBBER
        await connect(service, "repo", tool="export")
        assert (await row(service, "hubber")).is_active
        await asks_nothing(service, "repo", label="octocat", tool="list")


async def test_most_recently_activated_account_answers() -> None:
    clock = Clock()
    async with serving_accounts(network := Network(), clock=clock) as service:
        network.person = HUBBER
        await connect(service, "repo", tool="list", account="hubber", arguments="x")
        network.person = OCTOCAT
        named = Asking(service, "repo", "gist", tool="list", account="octocat")
        _, state = await opened(service, named)
        await give_up(named)
        await come_home(service, state)
        await unfetched(service, tool="export")
        octocat, hubber = await row(service, "octocat"), await row(service, "hubber")
        accounts = service.kinds.accounts
        for one, other in ((hubber, octocat), (octocat, hubber)):
            clock.tick(seconds=1)
            await accounts.connections.switch(one.owner, one.id)
            found = {each.label: each.put_aside_at for each in await stored(service)}
            assert found == {one.label: None, other.label: clock()}
        await asks_nothing(service, "repo", label="octocat", tool="export")
        # A tool that names an account gets that account, even if another one is in use.
        await accounts.connections.switch(hubber.owner, hubber.id)
        about: dict[str, str] = {"tool": "list", "account": "octocat"}
        await asks_nothing(service, "repo", "gist", label="octocat", **about)


async def test_account_activated_last_answers_although_former_account_is_reconnected() -> None:
    clock = Clock()
    async with serving_accounts(network := Network(), clock=clock) as service:
        await unfetched(service, tool="list")
        network.person = HUBBER
        await connect(service, "repo", tool="export")
        network.person = {"id": 3, "login": "third"}
        await connect(service, "repo", tool="list", account="third", arguments="x")
        clock.tick(seconds=1)
        third = await row(service, "third")
        await service.kinds.accounts.connections.switch(third.owner, third.id)
        # Connecting the account again does not put it in use.
        network.person = OCTOCAT
        await connect(service, "repo", "gist", tool="list", account="octocat", arguments="y")
        await asks_nothing(service, "repo", label="third", tool="list")


async def test_calls_sharing_answer_continue_with_their_own_account() -> None:
    clock = Clock()
    async with serving_accounts(network := Network(), clock=clock) as service:
        await unfetched(service, tool="list")
        (yes,) = await service.elicitations.all(Elicitation)
        network.person = HUBBER
        await connect(service, "repo", tool="list", account="hubber", arguments="x")

        async def gets(run: str) -> object:
            claimed = await service.elicitations.claim(yes.id, run=run, request_id="leg")
            content = await service.kinds.accounts.answer(claimed)
            assert isinstance(content, Mapping)
            return content["label"]

        assert await gets("first") == "octocat"
        clock.tick(seconds=1)
        hubber = await row(service, "hubber")
        await service.kinds.accounts.connections.switch(hubber.owner, hubber.id)
        assert [await gets("second"), await gets("first")] == ["hubber", "octocat"]
        for number in range(BEGUN_AT_MOST):
            assert await gets(f"later {number}") == "hubber"
        stored = await service.elicitations.get(yes.id)
        assert stored is not None
        assert isinstance(stored.content, Mapping)
        begun = stored.content["begun"]
        assert isinstance(begun, Mapping)
        assert len(begun) == BEGUN_AT_MOST


async def test_another_account_can_be_activated_after_disconnect() -> None:
    async with serving_accounts(network := Network()) as service:
        await both_connected(service, network)
        accounts, hubber = service.kinds.accounts, await row(service, "hubber")
        await accounts.keys.disconnect(hubber.owner, hubber.id)
        asked = Asking(service, "repo", tool="list", arguments="again")
        view = await page(service, await asked.elicitation())
        assert isinstance(view, UseAccount)
        assert [choice.person.label for choice in view.choices] == ["octocat"]
        await press_allow(service, await asked.elicitation())
        assert (await asked.account()).label == "octocat"
        assert (await row(service, "octocat")).is_active


async def test_last_use_is_recorded_per_tool_once_per_minute() -> None:
    clock = Clock()
    async with serving_accounts(Network(), clock=clock) as service:
        await connect(service, "repo", tool="list")
        began = clock()
        assert (await row(service, "octocat")).used == {"list": began}
        clock.tick(seconds=59)
        before = (await row(service, "octocat")).version
        await asks_nothing(service, "repo", label="octocat", tool="list", arguments=1)
        assert (await row(service, "octocat")).version == before
        clock.tick(seconds=1)
        await asks_nothing(service, "repo", label="octocat", tool="list", arguments=2)
        asked = Asking(service, "repo", tool="export")
        await press_allow(service, await asked.elicitation())
        await asked.account()
        minute = began + timedelta(minutes=1)
        assert (await row(service, "octocat")).used == {"list": minute, "export": minute}


async def test_failed_recording_of_use_is_no_error() -> None:
    class Contended(MemoryStore):
        is_contended = False

        async def write(self, *records: Record) -> tuple[Record, ...]:
            if self.is_contended and any(record.kind == "account" for record in records):
                raise Conflict(None)
            return await super().write(*records)

    clock, store = Clock(), Contended()
    async with serving_accounts(Network(), store=store, clock=clock) as service:
        await connect(service, "repo", tool="list")
        clock.tick(minutes=5)
        store.is_contended = True
        await asks_nothing(service, "repo", label="octocat", tool="list", arguments=1)


@pytest.mark.parametrize("reason", [None, "To list what you can push to."])
async def test_reason_is_shown_on_both_pages(reason: str | None) -> None:
    async with serving_accounts(Network()) as service:
        first = Asking(service, "repo", tool="list", reason=reason)
        view = await page(service, await first.elicitation())
        assert isinstance(view, StartAccount)
        assert view.reason == reason
        _, state = await opened(service, first)
        await come_home(service, state)
        await first.account()
        other = Asking(service, "repo", tool="export", reason=reason)
        view = await page(service, await other.elicitation())
        assert isinstance(view, UseAccount)
        assert view.reason == reason
        await service.elicitations.settle((await other.elicitation()).id, Status.DECLINED)
        await give_up(other)


async def test_single_authorization_answers_all_calls_waiting_for_same_account() -> None:
    async with serving_accounts(Network()) as service:
        waiting = [Asking(service, "repo", arguments=n) for n in range(50)]
        ids = {(await asked.elicitation()).id for asked in waiting}
        assert len(ids) == 50
        _, state = await opened(service, waiting[7])
        await come_home(service, state)
        for asked in waiting:
            assert (await asked.account()).label == "octocat"


async def test_authorization_does_not_answer_other_tools_or_wider_requests() -> None:
    async with serving_accounts(Network()) as service:
        others = [
            Asking(service, "repo", tool="export"),
            Asking(service, "repo", "gist", arguments=1),
            Asking(service, "repo", account="hubber", arguments=2),
        ]
        for other in others:
            await other.elicitation()
        await connect(service, "repo")
        for other in others:
            found = await service.elicitations.get((await other.elicitation()).id)
            assert found is not None
            assert found.status is Status.PENDING
        await give_up(*others)


async def test_authorization_does_not_answer_question_already_opened() -> None:
    async with serving_accounts(Network()) as service:
        one, other = Asking(service, "repo", arguments=1), Asking(service, "repo", arguments=2)
        _, state = await opened(service, one)
        elicitation, _ = await opened(service, other)
        await come_home(service, state)
        await one.account()
        assert await status_of(service, elicitation) is Status.OPENED
        await give_up(other)


async def test_choice_shows_all_scopes_of_each_account() -> None:
    async with serving_accounts(network := Network()) as service:
        network.scopes = "repo,delete_repo"
        await connect(service, "repo", "delete_repo", tool="list")
        network.person, network.scopes = HUBBER, "repo"
        await connect(service, "repo", tool="export")
        asked = Asking(service, "repo", tool="third")
        view = await page(service, await asked.elicitation())
        assert isinstance(view, UseAccount)
        shown = {c.person.label: [scope.raw for scope in c.scopes] for c in view.choices}
        assert shown == {"hubber": ["repo"], "octocat": ["delete_repo", "repo"]}
        await give_up(asked)


async def test_scopes_of_another_account_do_not_hide_suitable_account() -> None:
    async with serving_accounts(network := Network()) as service:
        await connect(service, "repo", tool="list")
        network.person, network.scopes = HUBBER, "repo,read:org"
        await connect(service, "repo", "read:org", tool="export")
        asked = Asking(service, "repo", tool="third")
        elicitation = await asked.elicitation()
        offers = await service.kinds.accounts.offers(elicitation)
        assert {offered.label for offered in offers} == {"octocat", "hubber"}
        url = await depart(service, elicitation, cookie="a cookie", switches=True)
        assert parse_qs(urlsplit(url).query)["scope"] == ["repo"]
        await give_up(asked)


async def test_switch_back_is_shown_if_another_person_connects_after_expiry() -> None:
    clock = Clock()
    async with serving_accounts(network := Network(), clock=clock) as service:
        await connect(service, "repo", tool="list")
        network.person = HUBBER
        asked = Asking(service, "repo", "gist", tool="list", arguments="more")
        elicitation, state = await opened(service, asked)
        clock.tick(minutes=6)
        await service.elicitations.end(elicitation, Status.EXPIRED)
        with pytest.raises(Expired):
            await asked.account()
        network.scopes = "repo,gist"
        await come_home(service, state)
        view = await page(service, elicitation)
        assert isinstance(view, DoneAccount)
        assert view.is_late
        assert view.person.label == "hubber"
        assert view.switch_back is not None
        assert view.switch_back.former.label == "octocat"


async def test_account_name_is_case_insensitive() -> None:
    async with serving_accounts(Network()) as service:
        await connect(service, "repo")
        await asks_nothing(service, "repo", label="octocat", account="Octocat")


WORKSPACES = replace(
    HUB,
    person=PersonProbe(
        url="http://127.0.0.1:8766/github/api/user", id=("team", "id"), label=("login", "team")
    ),
)
RED, BLUE = {**OCTOCAT, "team": "red"}, {**OCTOCAT, "team": "blue"}


async def test_two_workspaces_of_one_person_are_two_accounts() -> None:
    # finding: XO6
    network = Network()
    async with serving_accounts(network, providers={"github": WORKSPACES}) as service:
        network.person = RED
        red = await connect(service, "repo", tool="list")
        network.person = BLUE
        blue = await connect(service, "repo", tool="list", account="blue")
        assert (red.id, blue.id) == ("red/583231", "blue/583231")
        assert (red.label, blue.label) == ("octocat · red", "octocat · blue")
        assert len(await stored(service)) == 2
        for account in ("red", "octocat · red", "red/583231"):
            await asks_nothing(service, "repo", label=red.label, tool="list", account=account)
        await asks_nothing(service, "repo", label=blue.label, tool="list", account="BLUE")
        assert network.exchanges == 2


async def test_account_stored_before_ids_had_two_parts_is_reconnected_in_its_row() -> None:
    # finding: XO6
    network, store = Network(), MemoryStore()
    async with serving_accounts(network, store=store) as service:
        await connect(service, "repo", tool="list")
        (before,) = await stored(service)
    async with serving_accounts(network, store=store, providers={"github": WORKSPACES}) as service:
        await asks_nothing(service, "repo", label="octocat", tool="list")
        network.person = RED
        question = await start_reconnecting(service, before)
        assert question is not None
        url = await depart(service, question, cookie="a cookie")
        await come_home(service, parse_qs(urlsplit(url).query)["state"][0])
        (after,) = await stored(service)
        assert (after.id, after.person_id) == (before.id, "red/583231")
        await asks_nothing(service, "repo", label="octocat · red", tool="list")


@pytest.mark.parametrize("missing", ["team", "id"])
async def test_account_without_each_member_of_its_id_is_refused(missing: str) -> None:
    network = Network()
    async with serving_accounts(network, providers={"github": WORKSPACES}) as service:
        network.person = {name: value for name, value in RED.items() if name != missing}
        with pytest.raises(Failed, match="whose account"):
            await connect(service, "repo")
        assert await stored(service) == []
