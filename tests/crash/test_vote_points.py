"""A kill -9 in each window of an approval by two people over two days, and of its escalation.

Each vote counts once, the question is escalated once and decided once. Two processes on one store
count two votes that arrive at the same moment.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import pytest_asyncio

from flows.elicitation.voting import Voting, voting_in
from tests.crash.shop_env import LEASE_OVER, PortRouter, ProcessPool, Server, Shop, open_shop
from tests.support.approving import (
    ApprovalEnv,
    Ask,
    ask_as_program,
    ask_as_task,
    ask_as_tool,
    press,
    press_as,
)
from tests.support.chains import audit_entries_of
from tests.support.issuer import issuing
from tests.support.mcp_server import Page, Person, ServerEnv
from tests.support.notify_env import MailServer, mail_server
from tests.support.serving import bound
from tests.support.shared_stores import STORES
from webapp.connecting import connect, utc_now
from webapp.operations.history import show

DAY = 24 * 3600
CLAIM_OVER = 61  # seconds, after which the claim of a killed process on a message has expired
TWICE = "message sent"  # a process killed at this point sends the message again: documented
ASKS = (ask_as_tool, ask_as_task, ask_as_program)


class LaterClock:
    """The issuer's clock, which is moved together with the servers' clocks."""

    later = 0

    def __call__(self) -> datetime:
        return utc_now() + timedelta(seconds=self.later)


@dataclass(slots=True, kw_only=True)
class Approving:
    """A shop of killed processes whose refunds need approval, with its issuer and its mails."""

    shop: Shop
    env: ApprovalEnv
    mails: MailServer

    def start(self, *, die: str | None = None, later: int = 0, port: int = 0) -> Server:
        cast("Any", self.env.clock).later = later
        return self.shop.start(die=die, later=later, port=port)

    async def voting(self) -> Voting:
        """Return the votes of the newest question."""
        found = voting_in((await self.env.env.elicitations())[-1].request.terms)
        assert found is not None
        return found

    async def names(self) -> list[str]:
        """Return who has approved the newest question, in order."""
        return [vote.label for vote in (await self.voting()).approvals]

    async def times_escalated(self) -> int:
        timeline = (await show(self.env.env.service, (await self.env.asked()).id)).timeline
        return sum(row.what == "escalates to managers" for row in timeline)


@asynccontextmanager
async def open_approving(
    pool: ProcessPool, folder: Path, *, address: str
) -> AsyncIterator[Approving]:
    clock = LaterClock()
    async with (
        issuing(clock) as issuer,
        mail_server() as mails,
        open_shop(pool, folder, address=address) as shop,
    ):
        shop.issuer, shop.mail = issuer.url, mails.address("managers@example.com")
        async with connect(shop.settings) as service:
            env = ServerEnv(
                url=shop.settings.url,
                service=service,
                settings=shop.settings,
                posts=cast("Any", None),
            )
            try:
                yield Approving(
                    shop=shop,
                    env=ApprovalEnv(env=env, issuer=issuer, clock=cast("Any", clock)),
                    mails=mails,
                )
            finally:
                await env.aclose()


@pytest_asyncio.fixture(params=[*STORES])
async def approving(
    request: pytest.FixtureRequest, process_pool: ProcessPool, tmp_path: Path
) -> AsyncIterator[Approving]:
    async with (
        STORES[request.param](tmp_path) as address,
        open_approving(process_pool, tmp_path, address=address) as opened,
    ):
        yield opened


async def press_until_killed(here: Approving, name: str, *, die: str, later: int = 0) -> None:
    """Approve at a server that dies at this point. The browser may get no response."""
    async with here.start(die=die, later=later) as server:
        with suppress(httpx.TransportError):
            await press_as(here.env, name)
        await server.died()


async def press_again(here: Approving, name: str) -> None:
    """Approve again, if the request still waits in the person's inbox."""
    person = await here.env.signed_in(name)
    if await here.env.waiting(person):
        await press_as(here.env, name)


def paid_by(ask: Ask, *orders: str) -> list[str]:
    """Return the orders that the tool refunds: none if a program asks for the approval."""
    return [] if ask is ask_as_program else [*(orders or ("o8",))]


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("die", ["voting", "voted"])
async def test_first_vote_counts_once_after_kill(approving: Approving, ask: Ask, die: str) -> None:
    async with approving.start():
        result = await ask(approving.env)
    await press_until_killed(approving, "frank", die=die)
    assert len(await approving.names()) == (die == "voted")
    async with approving.start(later=LEASE_OVER):
        await press_as(approving.env, "frank", comment="Checked")
        first, *others = await approving.names()
        assert others == []
        await press_as(approving.env, "flora")
        assert await result(approving.env) == "o8 is paid back"
    assert approving.shop.work == paid_by(ask)
    assert first == (await approving.names())[0]


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("die", ["woken", "settled", "inbox closing", "inbox closed"])
async def test_second_vote_decides_once_after_kill(
    approving: Approving, ask: Ask, die: str
) -> None:
    async with approving.start():
        result = await ask(approving.env)
        await press_as(approving.env, "frank", comment="Checked")
    await press_until_killed(approving, "flora", die=die)
    assert len(await approving.names()) == (1 if die == "woken" else 2)
    async with approving.start(later=LEASE_OVER):
        await press_again(approving, "flora")
        assert await result(approving.env) == "o8 is paid back"
    assert approving.shop.work == paid_by(ask)
    assert len(await approving.names()) == 2


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("die", ["escalating", "escalated", "message claimed", TWICE])
async def test_question_escalates_once_after_kill(approving: Approving, ask: Ask, die: str) -> None:
    async with approving.start():
        result = await ask(approving.env)
        await press_as(approving.env, "frank", comment="Checked")
    await approving.start(die=die, later=DAY).dies_at_any_time()
    async with approving.start(later=DAY + CLAIM_OVER) as server:
        tries = await tries_until_sent(approving, server)
    async with approving.start(later=DAY + 20 * 3600):
        await press_as(approving.env, "mia")
        assert await result(approving.env) == "o8 is paid back"
    assert approving.shop.work == paid_by(ask)
    assert await approving.times_escalated() == 1
    assert len(await approving.names()) == 2
    # On a busy machine, a message can take longer than its limit, and is then sent again.
    sent = len(approving.mails.recipients) - (die == TWICE)
    assert 1 <= sent <= tries
    assert {*approving.mails.recipients} == {"managers@example.com"}


async def tries_until_sent(here: Approving, server: Server) -> int:
    """Wait until the message is noted as sent, and return how often the server tried to send it.

    The server may have tried once before it said "serving".
    """
    store, written = here.shop.store, 0
    while {row.status for row in await store.list("notification")} != {"ended"} or [
        row for row in await store.list("inbox") if row.due_at and row.due_at < here.env.clock()
    ]:
        written += (await server.says("wrote")).startswith("wrote notification waiting")
    return max(1, (written + 1) // 2)  # two writes for each failed try: the claim, and the failure


@pytest.fixture
def other_port() -> Iterator[int]:
    with bound("127.0.0.1") as reserved:
        yield reserved.getsockname()[1]


async def approve_at_once(here: Approving, *voters: tuple[str, Server]) -> None:
    """Open the request's page as each voter, at that voter's process, then approve all at once."""
    opened: list[tuple[Person, str, Page]] = []
    for name, server in voters:
        person = await here.env.signed_in(name)
        address = await here.env.one(person)
        person.browser.event_hooks = {"request": [PortRouter(server)]}
        opened.append((person, address, await person.visit(address)))
    await asyncio.gather(
        *(press(person, address, "approve", page=page) for person, address, page in opened)
    )


async def times_noted(here: Approving, what: str) -> int:
    """Return how many audit entries of the person have this `what`."""
    entries = await audit_entries_of(
        here.env.env.service, (await here.env.env.elicitations())[0].owner
    )
    return sum(entry.what == what for entry in entries)


@pytest.mark.parametrize("approving", ["postgres", "valkey"], indirect=True)
@pytest.mark.parametrize("ask", ASKS)
async def test_two_people_who_vote_at_once_in_two_processes_decide_once(
    approving: Approving, ask: Ask, other_port: int, rounds: Iterable[int]
) -> None:
    orders = list[str]()
    async with approving.start() as first, approving.start(port=other_port) as second:
        for number in rounds:
            orders.append(f"o{number}")
            result = await ask(approving.env, orders[-1])
            await approve_at_once(approving, ("frank", first), ("flora", second))
            assert len(set(await approving.names())) == 2
            assert await times_noted(approving, "accepted") == len(orders)
            assert await times_noted(approving, "approval 1 of 2") == len(orders)
            person = await approving.env.signed_in("frank")
            assert await approving.env.waiting(person) == []
            if ask is ask_as_program:
                continue  # a program's `result` expects comments, and these votes have none
            assert await result(approving.env) == f"{orders[-1]} is paid back"
    assert approving.shop.work == paid_by(ask, *orders)


@pytest.mark.parametrize("approving", ["postgres", "valkey"], indirect=True)
@pytest.mark.parametrize("ask", ASKS)
async def test_one_person_who_votes_twice_in_two_processes_counts_once(
    approving: Approving, ask: Ask, other_port: int, rounds: Iterable[int]
) -> None:
    orders = list[str]()
    async with approving.start() as first, approving.start(port=other_port) as second:
        for number in rounds:
            orders.append(f"o{number}")
            result = await ask(approving.env, orders[-1])
            await approve_at_once(approving, ("frank", first), ("frank", second), ("frank", second))
            assert len(await approving.names()) == 1
            assert await times_noted(approving, "accepted") == number
            assert await times_noted(approving, "approval 1 of 2") == len(orders)
            await press_as(approving.env, "flora", comment="Checked")
            assert await result(approving.env) == f"{orders[-1]} is paid back"
            assert await times_noted(approving, "accepted") == len(orders)
    assert approving.shop.work == paid_by(ask, *orders)
