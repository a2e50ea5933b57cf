"""Partial refunds, full refunds and crashes never refund more than was requested, in any order.

Two processes share a store. The test decides when the simulated provider handles each request, and
whether the provider carries it out, refuses it, or loses the reply. The process that sent the
request may die before the reply.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import httpx
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flows.errors import ElicitError, NotPossible
from flows.payments.receipt import Payment, ReceiptStatus
from flows.payments.refunds import UnderWay
from tests.support.checkouts import SELLER, payment
from tests.support.clock import Clock
from tests.support.service_env import plain_settings
from webapp.http.client import Outbound
from webapp.service import Service, open_service
from webapp.stores.sqlite import MemoryStore
from webapp.sweeper import fall_due

if TYPE_CHECKING:
    from collections.abc import Coroutine

# finding: XM2
PAID = 900
TURNS = 40  # turns of the event loop, enough for every ready task to run
some = st.integers(min_value=0, max_value=3)
amounts = st.sampled_from([100, 300, 600, None])


@dataclass(eq=False)
class Sent:
    """A request to the provider, and a future for the answer to its sender."""

    request: httpx.Request
    answer: "asyncio.Future[httpx.Response]"
    is_made: bool = False


class Till:
    """Simulated Stripe: one refund for each idempotency key, and no more in total than was paid."""

    def __init__(self) -> None:
        self.refunds: list[dict[str, Any]] = []
        self.sent: list[Sent] = []
        self.is_open = False  # whether requests are answered at once
        self._by_key: dict[str, dict[str, Any]] = {}

    @property
    def given(self) -> int:
        return sum(one["amount"] for one in self.refunds)

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        one = Sent(request, asyncio.get_running_loop().create_future())
        if self.is_open:
            return self.make(one)
        self.sent.append(one)
        return await one.answer

    def make(self, one: Sent) -> httpx.Response:
        """Carry out the request, and send the answer to its sender if the sender still waits."""
        one.is_made = True
        answer = self._made(one.request)
        if not one.answer.done():
            one.answer.set_result(answer)
        return answer

    def _made(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"object": "list", "data": [*self.refunds][::-1]})
        key, form = request.headers["idempotency-key"], dict(parse_qsl(request.content.decode()))
        if key not in self._by_key:
            amount = int(form.get("amount", PAID - self.given))
            if not 0 < amount <= PAID - self.given:
                return httpx.Response(400, json={"error": {"code": "amount_too_large"}})
            about = {"currency": "eur", "status": "succeeded", "payment_intent": "pi_1"}
            self._by_key[key] = {"id": f"re_{len(self.refunds)}", "amount": amount, **about}
            self.refunds.append(self._by_key[key])
        return httpx.Response(200, json=self._by_key[key])


@dataclass(eq=False)
class Life:
    """A process and the refunds that it makes."""

    service: Service
    making: dict["asyncio.Task[Any]", int] = field(default_factory=dict["asyncio.Task[Any]", int])


class PartRefundsAgainstModel(RuleBasedStateMachine):
    """Rules for two processes. The provider's own records are the model."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.stack = AsyncExitStack()
        self.till = Till()
        self.clock = Clock()
        self.store = MemoryStore()
        self.asked = [0]  # the requested totals of the callers that were not refused

    def do(self, work: "Coroutine[Any, Any, Any]") -> Any:
        return self.loop.run_until_complete(work)

    @asynccontextmanager
    async def _process(self) -> AsyncGenerator[Service]:
        async def public(_host: str, _port: int) -> list[str]:
            return ["93.184.215.14"]

        async with (
            httpx.AsyncClient(transport=httpx.MockTransport(self.till)) as client,
            open_service(
                plain_settings(sellers={SELLER.name: SELLER}),
                store=self.store.sibling(),
                clock=self.clock,
                outbound=Outbound(client, allow_loopback=True, resolve=public),
            ) as service,
        ):
            yield service

    async def _begin(self) -> list[Life]:
        return [Life(await self.stack.enter_async_context(self._process())) for _ in range(2)]

    @initialize(is_spent=st.booleans())
    def open(self, is_spent: bool) -> None:
        self.lives = self.do(self._begin())
        elicitations = self.lives[0].service.elicitations
        owner = elicitations.owners.tag(issuer="tests", subject="ann")
        status = ReceiptStatus.SPENT if is_spent else ReceiptStatus.OPEN
        self.id = f"{owner}{'p' * 24}"
        row = payment(status, id=self.id, owner=owner, dedupe_key=self.id, paid_at=self.clock())
        self.do(elicitations.write(row))

    def teardown(self) -> None:
        try:
            if hasattr(self, "lives"):
                self.do(self._end_well())
        finally:
            self.do(self.stack.aclose())
            self.loop.close()

    @rule(which=some, up_to=amounts)
    def refund(self, which: int, up_to: int | None) -> None:
        self.do(self._refund(self.lives[which % 2], up_to))

    async def _refund(self, life: Life, up_to: int | None) -> None:
        async def refund() -> None:
            refunds, owner = life.service.kinds.payments.refunds, self.id[:-24]
            self.asked.append(up_to or PAID)
            try:
                about: dict[str, Any] = {"reason": None, "also_spent": True}
                await refunds.refund(owner, self.id, up_to=up_to, **about)
            except (NotPossible, UnderWay):
                self.asked.remove(up_to or PAID)
            except ElicitError:
                pass
            else:
                assert self.till.given >= (up_to or PAID), (
                    "a refund that returns has refunded at least the requested amount"
                )

        life.making[asyncio.create_task(refund())] = up_to or PAID
        await self._calm()

    @rule(which=some)
    def answer(self, which: int) -> None:
        """Carry out a request at the provider, even if its sender is dead by now."""
        self.do(self._at_the_till(which, status=200))

    @rule(which=some)
    def lose_the_answer(self, which: int) -> None:
        self.do(self._at_the_till(which, status=504, is_made=True))

    @rule(which=some, status=st.sampled_from([400, 503]))
    def turn_away(self, which: int, status: int) -> None:
        self.do(self._at_the_till(which, status=status))

    async def _at_the_till(self, which: int, *, status: int, is_made: bool = False) -> None:
        sent = [one for one in self.till.sent if not one.is_made]
        if sent:
            one = sent[which % len(sent)]
            if status != 200 and not one.answer.done():
                one.answer.set_result(httpx.Response(status, json={}))
            if status == 200 or is_made:
                self.till.make(one)
            elif status == 400:
                self.till.sent.remove(one)  # a 400 is final: the request is never carried out
        await self._calm()

    @rule(which=some)
    def kill(self, which: int) -> None:
        """Kill a process. The requests that it sent are still carried out, now or later."""
        self.do(self._kill(self.lives[which % 2]))

    async def _kill(self, life: Life) -> None:
        for task in life.making:
            task.cancel()
        await asyncio.gather(*life.making, return_exceptions=True)
        life.making.clear()

    @rule(amount=st.sampled_from([{"seconds": 20}, {"seconds": 61}, {"minutes": 10}, {"days": 7}]))
    def let_time_pass(self, amount: dict[str, int]) -> None:
        self.clock.tick(**amount)

    @rule(which=some)
    def sweep(self, which: int) -> None:
        life = self.lives[which % 2]
        self.do(self._sweep(life))

    async def _sweep(self, life: Life) -> None:
        self.clock.tick(seconds=31)
        row = await self._row()
        is_due = row.status is ReceiptStatus.OPEN and row.part is None and row.due_at is not None
        if is_due and row.due_at is not None and row.due_at <= self.clock():
            self.asked.append(PAID)  # the sweeper refunds an unused payment in full
        life.making[asyncio.create_task(fall_due(life.service))] = PAID
        await self._calm()

    @invariant()
    def no_more_is_refunded_than_was_asked_for(self) -> None:
        assert self.till.given <= max(self.asked), (self.till.refunds, self.asked)

    async def _row(self) -> Payment:
        found: Payment | None
        found = await self.lives[0].service.kinds.payments.ledger.read(self.id[:-24], self.id)
        assert found is not None
        return found

    async def _calm(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)
        for life in self.lives:
            for task in [one for one in life.making if one.done()]:
                del life.making[task]
                if not task.cancelled():
                    task.result()

    async def _end_well(self) -> None:
        """Answer all requests and sweep, and check that the ledger agrees with the provider."""
        self.till.is_open = True
        for one in self.till.sent:
            if not one.is_made:
                self.till.make(one)
        await self._calm()
        for life in self.lives:
            await self._kill(life)
        for _ in range(3):
            self.clock.tick(days=1, seconds=1)
            await fall_due(self.lives[1].service)
        row = await self._row()
        self.no_more_is_refunded_than_was_asked_for()
        assert (row.part, row.refunded) == (None, self.till.given)


TestPartRefundsAgainstModel = PartRefundsAgainstModel.TestCase
TestPartRefundsAgainstModel.settings = settings(
    max_examples=60,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_refused_refund_list_does_not_mark_an_unanswered_refund_as_refused() -> None:
    machine = PartRefundsAgainstModel()
    machine.open(is_spent=False)
    machine.refund(which=0, up_to=100)
    machine.answer(which=0)  # the request for the list of refunds, before the refund
    machine.lose_the_answer(which=0)
    machine.turn_away(which=0, status=400)  # the request for the list of refunds, after the refund
    machine.teardown()
