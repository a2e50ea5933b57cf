"""Random kills (`kill -9`) of the server and of its database during many payments at once.

Each caller repeats its call until it has the result. Each person pays once and tries again until
the page reports the payment. The provider sends unanswered webhooks again. A seed decides after
which write a server dies, so that a run can be repeated. At the end the provider's records and our
store must agree: each order is brewed under one idempotency key and paid for once.
"""

import asyncio
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Protocol

import httpx

from tests.crash.account_env import AccountEnv, Customer, open_customer, open_market
from tests.crash.books import agreed
from tests.crash.shop_env import Calling, ProcessPool, Server, calling
from tests.support.postgres_server import PostgresServer
from tests.support.valkey_server import OwnValkey

WRITES_A_LIFE = (2, 40)
PATIENCE_SECONDS = 900
PAID = "This is paid, as far as pretending goes"
_LINK = re.compile(r"http://\S+/e/\S+")


class Database(Protocol):
    """The database that holds the store's records: a separate process, or a file."""

    @property
    def address(self) -> str:
        """The value of ELICIT_STORE, empty for a file in the test's folder."""
        ...

    def kill_and_start(self) -> bool:
        """Kill the database with `kill -9` and restart it. Return False if it has no process."""
        ...


class NoDatabase:
    """An SQLite file: there is no database process that could be killed."""

    address = ""

    def kill_and_start(self) -> bool:
        return False


class KilledPostgres:
    def __init__(self, server: PostgresServer, address: str) -> None:
        self._server = server
        self.address = address

    def kill_and_start(self) -> bool:
        self._server.kill()
        self._server.start()
        return True


class KilledValkey:
    def __init__(self, server: OwnValkey) -> None:
        self._server = server
        self.address = server.url

    def kill_and_start(self) -> bool:
        self._server.kill()
        self._server.start()
        return True


class Lives:
    """The server across its restarts. `server()` returns the process that serves now."""

    def __init__(
        self, env: AccountEnv, *, database: Database, kills: int, apart_seconds: int, seed: int
    ) -> None:
        self._env = env
        self._database = database
        self._kills = kills
        self._apart_seconds = apart_seconds
        self._random = random.Random(seed)  # noqa: S311 - a run must be reproducible
        self._server: asyncio.Future[Server] = asyncio.get_running_loop().create_future()
        self.over = asyncio.Event()  # set when the current process is killed
        self.killed = 0
        self.later = 0  # seconds that the current process's clock is ahead

    @property
    def are_over(self) -> bool:
        return self.killed >= self._kills

    async def server(self) -> Server:
        return await asyncio.shield(self._server)

    async def go_on(self, done: asyncio.Event) -> None:
        """Start and kill the server `kills` times, then serve until all orders are done."""
        while True:
            async with self._env.start(later=self.later) as server:
                self.over.clear()
                self._server.set_result(server)
                await self._env.resend_webhooks()
                if self.are_over:
                    await done.wait()
                    return
                writes = self._random.randint(*WRITES_A_LIFE)
                if not await has_written(server, writes, done):
                    return
                if self._random.random() < 0.5:
                    self.killed += await asyncio.to_thread(self._database.kill_and_start)
                    if not await has_written(server, writes, done):
                        return
                self._server = asyncio.get_running_loop().create_future()
                self.killed += 1
                self.later += self._apart_seconds
                self.over.set()
                server.kill()


async def has_written(
    server: Server, times: int, done: asyncio.Event, *, what: str = "wrote"
) -> bool:
    """Return True if the server wrote `times` times before all orders were done."""
    for _ in range(times):
        printed = asyncio.create_task(server.says(what))
        ended = asyncio.create_task(done.wait())
        await asyncio.wait((printed, ended), return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if not printed.done():
            printed.cancel()
            return False
        printed.result()
    return True


async def survives(
    pool: ProcessPool,
    folder: Path,
    *,
    database: Database,
    callers: int,
    kills: int,
    modes: Sequence[str],
    apart_seconds: int,
    seed: int,
) -> int:
    """Place orders, one at a time for each caller, until the server was killed `kills` times.

    After each kill, only the server's clock is moved ahead by another `apart_seconds`. Return the
    number of orders. Raise AssertionError if an order is lost, or brewed or paid for twice.
    """
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        open_market(pool, folder, address=database.address) as env,
    ):
        done = asyncio.Event()
        lives = Lives(env, database=database, kills=kills, apart_seconds=apart_seconds, seed=seed)
        results: list[str] = []
        async with asyncio.TaskGroup() as living:
            living.create_task(lives.go_on(done))
            async with asyncio.TaskGroup() as calls:
                numbers = count()
                for place in range(callers):
                    mode = modes[place % len(modes)]
                    calls.create_task(_order_on(lives, numbers, results, mode=mode))
            done.set()
        await _all_agree(env, results, later=lives.later)
        return len(results)


async def _order_on(
    lives: "Lives", numbers: Iterator[int], results: list[str], *, mode: str
) -> None:
    """Place one order after the other until all kills are done."""
    while True:
        results.append(await _ordered(lives, next(numbers), mode=mode))
        if lives.are_over:
            return


async def _ordered(lives: Lives, number: int, *, mode: str) -> str:
    """Repeat the call, like a client's model, until the tool returns its result."""
    paying = Paying(lives)
    async with open_customer() as customer:
        while True:
            server = await lives.server()
            over = asyncio.create_task(lives.over.wait())
            arguments = {"number": number}
            try:
                async with calling(server, "order", mode=mode, arguments=arguments) as call:
                    person = asyncio.create_task(paying.answer(call, customer))
                    await asyncio.wait((call.task, over), return_when=asyncio.FIRST_COMPLETED)
                    person.cancel()
                    await asyncio.gather(person, return_exceptions=True)
                    if call.task.done() and call.task.exception() is None:
                        text = call.task.result()
                        # While the store is down, a client can use up its rounds. Its result then
                        # contains a link to the question.
                        link = _LINK.search(text)
                        if link is None:
                            return text
                        paying.link = link[0]
            finally:
                over.cancel()


class Paying:
    """A person who continues where they stopped, and never pays twice on purpose."""

    def __init__(self, lives: Lives) -> None:
        self._lives = lives
        self._back: str | None = None
        self.link: str | None = None  # the newest link that this person was shown

    async def answer(self, call: Calling, customer: Customer) -> None:
        if self.link is None:
            self.link = await call.links.get()
        while True:
            while not call.links.empty():
                self.link = call.links.get_nowait()
            with suppress(httpx.TransportError, AssertionError, IndexError):
                await self._go_on(self.link, customer)
                return
            await self._lives.server()
            await asyncio.sleep(0)

    async def _go_on(self, link: str, customer: Customer) -> None:
        if self._back is None:
            there = await customer.to_provider(link)
            if (await customer.page(there)).heading == PAID:
                # The server died while this person paid. Only the merchant's buttons are left.
                return
            self._back = await customer.press(there)
        await customer.page(self._back)


async def _all_agree(env: AccountEnv, results: Sequence[str], *, later: int) -> None:
    async with env.start(later=later):
        await env.resend_webhooks()
        await env.delivered()
        await env.none_is("waiting", "hook")
    payments = await agreed(env)
    assert len(payments) == len(results), "each order has exactly one payment"
    statuses = Counter(str(payment.status) for payment in payments)
    # If the server died after it sent a result and before it stored the delivery, the payment is
    # not "spent".
    assert statuses.keys() <= {"spent", "open", "taken"}, statuses
    assert statuses["spent"] > len(results) / 2, statuses
    assert not any(payment.refunded for payment in payments)
    keys = defaultdict[str, set[str]](set)
    for line in env.work:
        number, _, words = line.partition(" ")
        keys[number].add(words)
    assert sorted(keys, key=int) == [str(number) for number in range(len(results))]
    # Work whose result was not stored is done again, under the same idempotency key.
    assert {number: len(each) for number, each in keys.items()} == dict.fromkeys(keys, 1)
    brewed = [f"tea {number} for {number} {words}" for number, (words,) in keys.items()]
    assert sorted(results) == sorted(brewed)
