"""Accounts that expire if unused: one process refreshes them in time, or the server warns."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import msgspec
import pytest

from flows.oauth.connection import Connection, planned
from flows.oauth.provider import Provider
from tests.support.account_env import CREDENTIALS, HUB, Network, connect, serving_accounts, stored
from tests.support.clock import Clock
from webapp.events.addresses import EventAddress
from webapp.oauth.keep_alive import REFRESHED_AT_ONCE
from webapp.records.values import OutgoingEvent
from webapp.service import Service
from webapp.stores.sqlite import MemoryStore
from webapp.sweeper import fall_due


class Tokens(Network):
    """A provider whose refresh tokens end after `unused`, or at a fixed time."""

    def __init__(self, *, unused: timedelta | None = None, rotates: bool = True) -> None:
        super().__init__()
        self.unused = unused
        self.rotates = rotates
        self.has_refresh = True
        self.down = False
        self.refused = False
        self.refreshes = list[str]()
        self.at_once = self.most_at_once = 0
        self.token = self._issue

    async def _issue(self, request: httpx.Request) -> httpx.Response:
        sent = dict(httpx.QueryParams(request.content.decode()))
        if "refresh_token" in sent:
            self.refreshes.append(sent["refresh_token"])
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            await asyncio.sleep(0)
            self.at_once -= 1
            if self.down:
                return httpx.Response(503)
            if self.refused:
                return httpx.Response(400, json={"error": "invalid_grant"})
        reply: dict[str, Any] = {"access_token": f"key-{self.exchanges}", "token_type": "bearer"}
        reply |= {"scope": self.scopes}
        if self.life_seconds is not None:
            reply["expires_in"] = self.life_seconds
        if self.has_refresh:
            reply["refresh_token"] = f"refresh-{self.exchanges if self.rotates else 0}"
        if self.unused is not None:
            reply["refresh_token_expires_in"] = int(self.unused.total_seconds())
        return httpx.Response(200, json=reply)


ADDRESS = EventAddress(name="crm", url="https://crm.example/hook", secrets=("whsec_" + "A" * 32,))


@asynccontextmanager
async def serving_hub(
    network: Network, clock: Clock, *, provider: Provider = HUB, store: Any = None
) -> AsyncIterator[Service]:
    async with serving_accounts(
        network,
        clock=clock,
        providers={"github": provider},
        credentials=CREDENTIALS,
        store=store,
        events=(ADDRESS,),
    ) as service:
        yield service


async def sweep_for(service: Service, clock: Clock, days: int) -> None:
    """Let days pass, and sweep four times a day."""
    for _ in range(4 * days):
        clock.tick(hours=6)
        await fall_due(service)


async def events_of(service: Service, prefix: str = "account.") -> list[str]:
    """Return the types of the events of the last 30 days. Earlier events are erased."""
    found = await service.elicitations.all(OutgoingEvent)
    return [each.type for each in found if each.type.startswith(prefix)]


async def account_of(service: Service) -> Connection:
    (row,) = await stored(service)
    return row


@pytest.mark.parametrize("declared", [True, False])
async def test_unused_refresh_token_is_used_in_time(declared: bool) -> None:
    # finding: XO9
    unused = timedelta(days=90)
    network, clock = Tokens(unused=None if declared else unused), Clock()
    provider = replace(HUB, refresh_unused_days=90) if declared else HUB
    async with serving_hub(network, clock, provider=provider) as service:
        await connect(service, "repo")
        begun = clock()
        row = await account_of(service)
        assert row.refresh_expires_at == begun + unused
        assert row.keep_at is not None
        assert begun + timedelta(days=69) <= row.keep_at <= begun + timedelta(days=76)
        await sweep_for(service, clock, 68)
        assert network.refreshes == []
        await sweep_for(service, clock, 10)
        assert network.refreshes == ["refresh-1"]
        after = await account_of(service)
        assert after.status == "connected"
        assert after.refresh_expires_at is not None
        assert after.refresh_expires_at > begun + timedelta(days=140)
        await sweep_for(service, clock, 90)
        assert network.refreshes == ["refresh-1", "refresh-2"]
        assert await events_of(service) == []


async def test_fixed_end_is_reported_once_and_then_the_account_lapses() -> None:
    network, clock = Tokens(unused=timedelta(days=60), rotates=False), Clock()
    async with serving_hub(network, clock) as service:
        await connect(service, "repo")
        end = clock() + timedelta(days=60)

        async def fixed(request: httpx.Request) -> httpx.Response:
            network.unused = end - clock()
            return await network._issue(request)

        network.token = fixed
        await sweep_for(service, clock, 50)
        assert len(network.refreshes) == 1  # the refresh did not move the end
        row = await account_of(service)
        assert (row.has_fixed_end, row.warned_at) == (True, None)
        await sweep_for(service, clock, 5)
        row = await account_of(service)
        assert row.warned_at is not None
        assert await events_of(service) == ["account.expiring"]
        network.refused = True
        await sweep_for(service, clock, 10)
        assert len(network.refreshes) == 2  # one last try after the end
        assert (await account_of(service)).status == "lapsed"
        assert await events_of(service) == ["account.expiring", "account.lapsed"]


async def test_account_without_refresh_token_is_warned_of_and_lapses() -> None:
    network, clock = Tokens(), Clock()
    network.has_refresh, network.life_seconds = False, int(timedelta(days=60).total_seconds())
    async with serving_hub(network, clock) as service:
        await connect(service, "repo")
        await sweep_for(service, clock, 52)
        assert await events_of(service) == []
        await sweep_for(service, clock, 2)
        assert await events_of(service) == ["account.expiring"]
        event = (await service.elicitations.all(OutgoingEvent))[-1]
        row = await account_of(service)
        assert row.ends_at is not None
        assert event.facts["ends_at"] == f"{row.ends_at:%Y-%m-%dT%H:%M:%SZ}"
        assert event.facts["status"] == "connected"
        await sweep_for(service, clock, 8)
        assert await events_of(service) == ["account.expiring", "account.lapsed"]
        assert network.refreshes == []


async def test_reconnected_account_is_not_expiring_any_more() -> None:
    network, clock = Tokens(), Clock()
    network.has_refresh, network.life_seconds = False, int(timedelta(days=60).total_seconds())
    async with serving_hub(network, clock) as service:
        await connect(service, "repo")
        await sweep_for(service, clock, 54)
        assert (await account_of(service)).warned_at is not None
        network.scopes = "repo gist"
        await connect(service, "repo", "gist", arguments=2)
        row = await account_of(service)
        assert (row.warned_at, row.status) == (None, "connected")
        await sweep_for(service, clock, 20)
        assert (await events_of(service)).count("account.expiring") == 1


async def test_provider_that_is_down_is_asked_again_and_the_person_is_warned() -> None:
    network, clock = Tokens(unused=timedelta(days=90)), Clock()
    async with serving_hub(network, clock) as service:
        await connect(service, "repo")
        network.down = True
        await sweep_for(service, clock, 82)
        tries = len(network.refreshes)
        assert 20 <= tries <= 60  # each six hours since the first try
        await sweep_for(service, clock, 2)
        assert (await account_of(service)).warned_at is not None
        assert await events_of(service) == ["account.expiring"]
        network.down = False
        await sweep_for(service, clock, 1)
        row = await account_of(service)
        assert (row.warned_at, row.status) == (None, "connected")
        await sweep_for(service, clock, 3)
        assert await events_of(service) == ["account.expiring", "account.connected"]


@pytest.mark.parametrize("hours", [1, 30])
async def test_refresh_token_with_a_short_lifetime_is_not_refreshed_early(hours: int) -> None:
    network, clock = Tokens(unused=timedelta(hours=hours)), Clock()
    async with serving_hub(network, clock) as service:
        await connect(service, "repo")
        assert (await account_of(service)).keep_at is None
        await sweep_for(service, clock, 4)
        assert network.refreshes == []


async def test_process_that_dies_after_the_request_causes_no_second_refresh() -> None:
    # The write after the provider's reply is lost, as if the process had been killed.
    class Dying(MemoryStore):
        dies = False

        async def write(self, *records: Any) -> Any:
            if self.dies and network.refreshes:
                raise asyncio.CancelledError
            return await super().write(*records)

    network, clock, store = Tokens(unused=timedelta(days=90)), Clock(), Dying()
    async with serving_hub(network, clock, store=store) as service:
        await connect(service, "repo")
        keep_at = (await account_of(service)).keep_at
        assert keep_at is not None
        clock.tick(seconds=(keep_at - clock()).total_seconds() + 1)
        store.dies = True
        await fall_due(service)
        store.dies = False
    assert network.refreshes == ["refresh-1"]
    async with serving_hub(network, clock, store=store) as other:
        for _ in range(60):  # one hour, which is longer than the dead process's claim
            clock.tick(minutes=1)
            await fall_due(other)
        assert network.refreshes == ["refresh-1"]
        row = await account_of(other)
        assert row.keep_at == keep_at + timedelta(hours=6, seconds=1)


async def test_many_due_accounts_are_refreshed_once_each_by_two_processes() -> None:
    network, clock, store = Tokens(unused=timedelta(days=90)), Clock(), MemoryStore()
    async with (
        serving_hub(network, clock, store=store) as one,
        serving_hub(network, clock, store=store) as other,
    ):
        await connect(one, "repo")
        row = await account_of(one)
        now = clock()
        for number in range(60):
            id = row.owner + f"account-number-{number:04d}"
            more = replace_row(row, id=id, refresh_token=f"refresh-of-{number}")
            await one.elicitations.write(planned(more, now=now))
        rows = await stored(one)
        times = {each.keep_at for each in rows}
        assert len(times) == len(rows)  # at different times
        clock.tick(days=80)
        for _ in range(8):
            await asyncio.gather(fall_due(one), fall_due(other))
            clock.tick(seconds=31)
        assert sorted(network.refreshes) == sorted({*network.refreshes})
        assert len(network.refreshes) == 61
        assert network.most_at_once <= 2 * REFRESHED_AT_ONCE


def replace_row(row: Connection, **change: Any) -> Connection:
    return msgspec.structs.replace(row, is_active=False, version=0, keep_at=None, **change)
