"""Scopes that a provider does not grant: the person is asked once, and `missing` lists them."""

import logging
from dataclasses import replace

import pytest
from msgspec import structs

from tests.support.account_env import (
    HUB,
    Asking,
    Network,
    come_home,
    connect,
    give_up,
    opened,
    serving_accounts,
    stored,
)


async def test_scope_that_is_never_granted_is_asked_for_once() -> None:
    # finding: XO5
    network = Network()
    async with serving_accounts(network) as service:
        account = await connect(service, "repo", "READ")
        assert (account.scopes, account.missing) == (("repo",), ("READ",))
        for number in range(3):
            asked = Asking(service, "repo", "READ", arguments=number)
            account = await asked.account()
            assert not asked.has_asked
            assert account.missing == ("READ",)
        assert (await Asking(service, "repo", arguments="less").account()).missing == ()
        assert network.exchanges == 1


async def test_missing_scope_is_asked_for_again_if_the_tool_passes_again() -> None:
    network = Network()
    async with serving_accounts(network) as service:
        await connect(service, "repo", "gist")
        network.scopes = "repo,gist"
        account = await connect(service, "repo", "gist", again=True, arguments=2)
        assert (account.missing, network.exchanges) == ((), 2)
        asked = Asking(service, "repo", "gist", again=True, arguments=3)
        assert (await asked.account()).missing == ()
        assert not asked.has_asked


async def test_account_is_returned_if_a_scope_is_withheld_again() -> None:
    async with serving_accounts(network := Network()) as service:
        for number in range(2):
            account = await connect(service, "repo", "gist", again=True, arguments=number)
            assert account.missing == ("gist",)
        assert network.exchanges == 2


async def test_other_scope_and_other_tool_are_still_asked_for() -> None:
    async with serving_accounts(Network()) as service:
        await connect(service, "repo", "READ", tool="list")
        for about in ({"tool": "list", "scopes": "workflow"}, {"tool": "export", "scopes": "READ"}):
            asked = Asking(service, "repo", about["scopes"], tool=about["tool"])
            elicitation = await asked.elicitation()
            assert await service.kinds.accounts.offers(elicitation) == ()
            await give_up(asked)


async def test_scope_that_a_refresh_drops_is_asked_for_again() -> None:
    async with serving_accounts(network := Network()) as service:
        network.scopes = "repo,gist"
        await connect(service, "repo", "gist")
        (row,) = await stored(service)
        await service.elicitations.write(structs.replace(row, scopes=("repo",)))
        asked = Asking(service, "repo", "gist", arguments=2)
        await asked.elicitation()
        await give_up(asked)


async def test_waiting_question_with_again_is_not_answered_by_fewer_scopes() -> None:
    async with serving_accounts(Network()) as service:
        first = Asking(service, "repo", "gist", arguments=1)
        again = Asking(service, "repo", "gist", again=True, arguments=2)
        await again.elicitation()
        _, state = await opened(service, first)
        await come_home(service, state)
        assert (await first.account()).missing == ("gist",)
        assert not again.task.done()
        await give_up(again)


@pytest.mark.parametrize(
    ("reply", "is_logged"), [("READ", True), ("", False), ("repo,READ", False), ("repo", False)]
)
async def test_reply_without_any_requested_scope_is_logged_with_its_remedy(
    caplog: pytest.LogCaptureFixture, reply: str, is_logged: bool
) -> None:
    # finding: XO5
    network = Network()
    network.scopes = reply
    providers = {"github": replace(HUB, covers={})}
    with caplog.at_level(logging.WARNING):
        async with serving_accounts(network, providers=providers) as service:
            await connect(service, "repo")
    lines = [one for one in caplog.records if one.message.startswith("account.no_scope")]
    assert len(lines) == is_logged
    for line in lines:
        assert "reply_scope_separator" in line.message
        assert "covers" in line.message
        assert vars(line)["received"] == "READ"


async def test_account_of_an_earlier_version_is_asked_for_its_missing_scope_once() -> None:
    async with serving_accounts(network := Network()) as service:
        await connect(service, "repo", "READ")
        (row,) = await stored(service)
        await service.elicitations.write(structs.replace(row, withheld=()))
        await connect(service, "repo", "READ", arguments=2)
        asked = Asking(service, "repo", "READ", arguments=3)
        assert (await asked.account()).missing == ("READ",)
        assert (asked.has_asked, network.exchanges) == (False, 2)
