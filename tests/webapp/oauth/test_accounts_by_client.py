"""Accounts that a person limits to some clients: by default, every client can use an account."""

from functools import partial
from typing import Any

import msgspec
import pytest

from flows.elicitation.tool_call import CallingClient
from flows.errors import Failed
from flows.oauth.connection import CLIENTS_AT_MOST, Connection
from flows.providers import github
from flows.requests import AccountRequest
from tests.support.account_env import (
    Asking,
    Network,
    connect,
    give_up,
    press_allow,
    serving_accounts,
    stored,
)
from tests.support.clock import NOON
from webapp.elicitations.question_kind import AskedBy
from webapp.service import Service


async def limited_to(service: Service, *client_ids: str) -> Connection:
    """Limit the only account to these clients of its person, and return it."""
    (found,) = await stored(service)
    keys = [one.key for one in found.clients if one.id in client_ids]
    assert len(keys) == len(client_ids)
    await service.kinds.accounts.connections.limit_to(found.owner, found.id, keys)
    return found


async def test_every_client_can_use_account_until_limited_to_some() -> None:
    # finding: S11
    # parity: L13
    async with serving_accounts(network := Network()) as service:
        await connect(service, "repo", client_id="one")
        two = Asking(service, "repo", client_id="two")
        assert (await two.account()).label == "octocat"
        assert not two.has_asked
        found = await limited_to(service, "one")
        assert [client.id for client in found.clients] == ["one", "two"]
        one = Asking(service, "repo", client_id="one", arguments="again")
        await one.account()
        assert not one.has_asked
        others: tuple[dict[str, Any], ...] = (
            {"client_id": "two"},
            {"client_id": "three"},
            {"client": "one"},
        )
        for other in others:
            asked = Asking(service, "repo", arguments="again", **other)
            await asked.elicitation()
            assert not asked.task.done()
            await give_up(asked)
        await service.kinds.accounts.connections.limit_to(found.owner, found.id, None)
        again = Asking(service, "repo", client_id="two", arguments="3")
        assert (await again.account()).label == "octocat"
        assert not again.has_asked
        assert network.exchanges == 1


async def test_allowing_adds_client_to_limited_account() -> None:
    # finding: S11
    async with serving_accounts(network := Network()) as service:
        await connect(service, "repo", client_id="one")
        await limited_to(service, "one")
        asked = Asking(service, "repo", client_id="two")
        await press_allow(service, await asked.elicitation())
        assert (await asked.account()).label == "octocat"
        for client_id, is_asked in (("one", False), ("two", False), ("three", True)):
            again = Asking(service, "repo", client_id=client_id, arguments="again")
            if is_asked:
                await again.elicitation()
                await give_up(again)
            else:
                await again.account()
                assert not again.has_asked, client_id
        assert network.exchanges == 1
        # A client that connects the limited account again is added to its permitted clients.
        await connect(service, "repo", "gist", client_id="four")
        (found,) = await stored(service)
        assert found.only is not None
        assert len(found.only) == 3


async def test_limited_account_does_not_answer_waiting_question_of_other_client() -> None:
    # finding: S11
    async with serving_accounts(Network()) as service:
        await connect(service, "repo", client_id="one")
        await limited_to(service, "one")
        waiting = Asking(service, "repo", client_id="two")
        await waiting.elicitation()
        await connect(service, "repo", "gist", client_id="one")
        assert not waiting.task.done()
        await give_up(waiting)


async def test_running_call_loses_account_limited_to_other_clients() -> None:
    # finding: S11
    async with serving_accounts(Network()) as service:
        await connect(service, "repo", client_id="one")
        two = Asking(service, "repo", client_id="two")
        await two.account()
        (found,) = await stored(service)
        key = partial(
            service.kinds.accounts.keys.instead_of,
            *(found.owner, found.id),
            refused="another key",
            tool="t",
        )
        client = CallingClient(name="c", id="two")
        assert await key(client=client) == (found.access_token, None)
        await limited_to(service, "one")
        assert await key(client=client) is None
        by = AskedBy(owner=found.owner, server="s", tool="t", client=client, account=found.id)
        with pytest.raises(Failed):
            await service.kinds.accounts.known(AccountRequest(provider=github, scopes=()), by)


async def test_seen_clients_are_bounded_and_permitted_clients_are_not_dropped() -> None:
    # finding: S11
    async with serving_accounts(Network()) as service:
        await connect(service, "repo", client_id="first")
        await limited_to(service, "first")
        (found,) = await stored(service)
        await service.kinds.accounts.connections.limit_to(found.owner, found.id, None)
        for number in range(CLIENTS_AT_MOST + 5):
            await Asking(service, "repo", client_id=f"{number}").account()
        (found,) = await stored(service)
        assert [one.id for one in found.clients] == [f"{n}" for n in range(5, CLIENTS_AT_MOST + 5)]
        await limited_to(service, "5")
        for number in range(CLIENTS_AT_MOST):
            asked = Asking(service, "repo", client_id=f"later {number}")
            await press_allow(service, await asked.elicitation())
            await asked.account()
        (found,) = await stored(service)
        assert {one.key for one in found.clients} >= {*(found.only or ())}
        again = Asking(service, "repo", client_id="5", arguments="again")
        await again.account()
        assert not again.has_asked


def test_account_stored_without_clients_by_earlier_version_is_for_all() -> None:
    # finding: S11
    former = {"tools": ["t"], "scopes": [], "connected_at": NOON.isoformat()} | dict.fromkeys(
        ("id", "owner", "key", "server", "provider", "person_id", "label", "access_token"), "x"
    )
    old = msgspec.convert(former, Connection)
    assert old.is_shared("t", CallingClient(name="any"))
    assert not old.is_shared("other", CallingClient(name="any"))
