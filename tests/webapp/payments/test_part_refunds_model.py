"""Refunds, banks' claims and crashes never refund more than was requested, in any order.

Two processes share a store. The test decides when the simulated provider handles each request, and
whether the provider carries it out, refuses it, or loses or delays the reply. The process that sent
the request may die before the reply. Refunds are also made at the provider's dashboard, and fail
later. A bank claims a part or all of the payment. The provider's events arrive in any order.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import httpx
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flows.errors import ElicitError, NotPossible
from flows.payments.claims import claimed_of
from flows.payments.receipt import Payment, ReceiptStatus
from flows.payments.refunds import UnderWay
from flows.payments.session import REFERENCE_KEY
from flows.payments.stripe.gateway import STRIPE, StripeGateway
from flows.webhooks.signatures import verify
from tests.support import signing
from tests.support.checkouts import SELLER, payment
from tests.support.clock import Clock
from tests.support.event_env import CRM
from tests.support.service_env import plain_settings
from webapp.http.client import Outbound
from webapp.records.values import KINDS, OutgoingEvent
from webapp.service import Service, ServiceOptions, open_service
from webapp.stores import Record
from webapp.stores.sqlite import MemoryStore
from webapp.sweeper import fall_due

if TYPE_CHECKING:
    from collections.abc import Coroutine

# finding: XM2
PAID = 900
WEBHOOK_SECRET = SELLER.webhook_secrets[0]
REFUNDED = ("payment.refunded", "payment.refunded_in_part")
TURNS = 40  # turns of the event loop, enough for every ready task to run
Body = dict[str, Any]
some = st.integers(min_value=0, max_value=3)
amounts = st.sampled_from([100, 300, 600, None])


@dataclass(eq=False)
class Sent:
    """A request to the provider, and a future for the answer to its sender."""

    request: httpx.Request
    answer: "asyncio.Future[httpx.Response]"
    made: httpx.Response | None = None


class Till:
    """Simulated Stripe: one refund for each idempotency key, and no more in total than was paid.

    `post` has the events that Stripe has not delivered yet. If `is_open`, requests are answered at
    once; otherwise the test answers them.
    """

    def __init__(self, clock: Clock) -> None:
        self.refunds: list[Body] = []
        self.disputes: list[Body] = []
        self.sent: list[Sent] = []
        self.post: list[bytes] = []
        self.reference = ""
        self.is_open = False
        self.status = "succeeded"  # of new refunds
        self._clock = clock
        self._events = 0
        self._by_key: dict[str, Body] = {}

    @property
    def given(self) -> int:
        return sum(one["amount"] for one in self.refunds if one["status"] != "failed")

    @property
    def claimed(self) -> int:
        return sum(one["amount"] for one in self.disputes if one["status"] != "won")

    @property
    def remaining(self) -> int:
        return PAID - self.given - self.claimed

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        one = Sent(request, asyncio.get_running_loop().create_future())
        if self.is_open:
            return self.make(one)
        self.sent.append(one)
        return await one.answer

    def make(self, one: Sent) -> httpx.Response:
        """Carry out the request, and send the answer to its sender if the sender still waits."""
        one.made = one.made or self._made(one.request)
        if not one.answer.done():
            one.answer.set_result(one.made)
        return one.made

    def hold(self, one: Sent) -> None:
        """Carry out the request, and hold its answer back."""
        one.made = self._made(one.request)

    def refund(self, amount: int, **about: Any) -> Body:
        """Make a refund, and send the event about the charge."""
        same = {"object": "refund", "currency": "eur", "payment_intent": "pi_1", "metadata": {}}
        refund = {**same, "id": f"re_{len(self.refunds)}", "amount": amount, "status": "succeeded"}
        self.refunds.append(refund | about | {"has_pended": about.get("status") == "pending"})
        charge = {"object": "charge", "id": "ch_1", "amount_refunded": self.given}
        self._send("charge.refunded", {**same, **charge, "metadata": self.metadata})
        return self.refunds[-1]

    def fail(self, refund: Body) -> None:
        refund["status"] = "failed"
        self._send("refund.failed", refund)

    def finish(self, refund: Body) -> None:
        refund["status"] = "succeeded"
        self._send("refund.updated", refund)

    def claim(self, amount: int) -> None:
        dispute = {"object": "dispute", "id": f"dp_{len(self.disputes)}", "amount": amount}
        about = {"currency": "eur", "payment_intent": "pi_1", "status": "needs_response"}
        self.disputes.append(dispute | about)
        self._send("charge.dispute.created", self.disputes[-1])

    def decide(self, dispute: Body, status: str) -> None:
        dispute["status"] = status
        self._send("charge.dispute.closed", dispute)

    @property
    def metadata(self) -> Body:
        return {REFERENCE_KEY: self.reference}

    def _send(self, kind: str, about: Body) -> None:
        self._events += 1
        created = int(self._clock().timestamp())
        event = {"id": f"evt_{self._events}", "type": kind, "created": created, "livemode": False}
        self.post.append(json.dumps({**event, "data": {"object": about}}).encode())

    def _made(self, request: httpx.Request) -> httpx.Response:
        match request.method, request.url.path:
            case "GET", "/v1/refunds":
                return httpx.Response(200, json={"data": [*self.refunds][::-1]})
            case "GET", "/v1/disputes":
                return httpx.Response(200, json={"data": [*self.disputes][::-1]})
            case "GET", _:
                return httpx.Response(200, json={"id": "pi_1", "metadata": self.metadata})
        key, form = request.headers["idempotency-key"], dict(parse_qsl(request.content.decode()))
        if key not in self._by_key:
            amount = int(form.get("amount", PAID - self.given))
            if not 0 < amount <= self.remaining:
                return httpx.Response(400, json={"error": {"code": "amount_too_large"}})
            self._by_key[key] = self.refund(amount, metadata=self.metadata, status=self.status)
        return httpx.Response(200, json=self._by_key[key])


class History(MemoryStore):
    """A store whose siblings add every written record to one list."""

    def __init__(self, records: list[Record], *, shares_with: MemoryStore | None = None) -> None:
        super().__init__(shares_with=shares_with)
        self.records = records

    def sibling(self) -> MemoryStore:
        return History(self.records, shares_with=self)

    async def write(self, *records: Record) -> tuple[Record, ...]:
        written = await super().write(*records)
        self.records += written
        return written


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
        self.clock = Clock()
        self.till = Till(self.clock)
        self.store = History([])
        self.asked = [0]  # the requested totals of the callers that were not refused
        self.confirmed = 0  # the highest total that a successful request refunded
        self.dashboard = 0  # the total of the refunds at the provider's dashboard

    def do(self, work: "Coroutine[Any, Any, Any]") -> Any:
        return self.loop.run_until_complete(work)

    @asynccontextmanager
    async def _process(self) -> AsyncGenerator[Service]:
        async def public(_host: str, _port: int) -> list[str]:
            return ["93.184.215.14"]

        async with (
            httpx.AsyncClient(transport=httpx.MockTransport(self.till)) as client,
            open_service(
                plain_settings(sellers={SELLER.name: SELLER}, events=(CRM,)),
                ServiceOptions(
                    clock=self.clock, outbound=Outbound(client, allow_loopback=True, resolve=public)
                ),
                store=self.store.sibling(),
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
        self.till.reference = f"{owner}{'q' * 24}"
        about: Body = {"id": self.id, "owner": owner, "elicitation_id": self.till.reference}
        row = payment(status, **about, dedupe_key=self.id, paid_at=self.clock())
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
                self.confirmed = max(self.confirmed, up_to or PAID)

        life.making[asyncio.create_task(refund())] = up_to or PAID
        await self._calm()

    @rule(which=some, up_to=amounts)
    def refund_at_once(self, which: int, up_to: int | None) -> None:
        """Refund while the provider answers at once, so that later states occur more often."""
        self.till.is_open = True
        self.refund(which=which, up_to=up_to)
        self.till.is_open = False

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
        sent = [one for one in self.till.sent if one.made is None]
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
    def hold(self, which: int) -> None:
        """Carry out a request, and hold its answer back."""
        sent = [one for one in self.till.sent if one.made is None]
        if sent:
            self.till.hold(sent[which % len(sent)])

    @rule(which=some)
    def release(self, which: int) -> None:
        sent = [one for one in self.till.sent if one.made is not None and not one.answer.done()]
        if sent:
            self.till.make(sent[which % len(sent)])
        self.do(self._calm())

    # The provider and the bank.

    @rule(amount=amounts)
    def refund_at_dashboard(self, amount: int | None) -> None:
        wanted = self.till.remaining if amount is None else amount
        if 0 < wanted <= self.till.remaining:
            self.till.refund(wanted)
            self.dashboard += wanted

    @rule(are_pending=st.booleans())
    def switch(self, are_pending: bool) -> None:
        self.till.status = "pending" if are_pending else "succeeded"

    @rule(which=some)
    def fail(self, which: int) -> None:
        made = [one for one in self.till.refunds if one["status"] != "failed"]
        if made:
            self.till.fail(made[which % len(made)])

    @rule(which=some)
    def finish(self, which: int) -> None:
        made = [one for one in self.till.refunds if one["status"] == "pending"]
        if made:
            self.till.finish(made[which % len(made)])

    @rule(amount=amounts)
    def claim(self, amount: int | None) -> None:
        wanted = self.till.remaining if amount is None else amount
        if 0 < wanted <= self.till.remaining:
            self.till.claim(wanted)

    @rule(which=some, status=st.sampled_from(["won", "lost"]))
    def decide(self, which: int, status: str) -> None:
        made = [one for one in self.till.disputes if one["status"] == "needs_response"]
        if made:
            self.till.decide(made[which % len(made)], status)

    @rule(which=some, process=some, again=st.booleans())
    def deliver(self, which: int, process: int, again: bool) -> None:
        if self.till.post:
            event = self.till.post[which % len(self.till.post)]
            if not again:
                self.till.post.remove(event)
            self.do(self._deliver(event, self.lives[process % 2]))

    async def _deliver(self, event: bytes, life: Life) -> None:
        gateway = life.service.kinds.payments.flow.named("stripe")
        assert isinstance(gateway, StripeGateway)
        headers = signing.stripe(event, secret=WEBHOOK_SECRET, now=self.clock())
        secrets = SELLER.webhook_secrets
        now = self.clock()
        delivery = verify(STRIPE, body=event, headers=headers, secrets=secrets, now=now)
        life.making[asyncio.create_task(life.service.webhooks.receive(gateway, delivery))] = 0
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
        assert self.till.given <= max(self.asked) + self.dashboard, (self.till.refunds, self.asked)

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
        self.till.is_open, self.till.status = True, "succeeded"
        for one in self.till.sent:
            self.till.make(one)
        await self._calm()
        for life in self.lives:
            await self._kill(life)
        for event in [*self.till.post]:
            await self._deliver(event, self.lives[0])
        for refund in self.till.refunds:
            if refund["status"] == "pending":
                self.till.finish(refund)
                await self._deliver(self.till.post[-1], self.lives[0])
        for _ in range(6):
            self.clock.tick(days=1, seconds=1)
            row = await self._row()
            if row.status is ReceiptStatus.OPEN and row.due_at is not None:
                self.asked.append(PAID)
            await fall_due(self.lives[1].service)
        self.no_more_is_refunded_than_was_asked_for()
        await self._ledger_agrees()
        await self._events_are_sent_once()

    async def _ledger_agrees(self) -> None:
        row = await self._row()
        given, claimed = self.till.given, self.till.claimed
        about = row, self.till.refunds, self.till.disputes
        assert (row.part, row.pending, row.refunded) == (None, None, given), about
        assert claimed_of(row) == claimed, about
        assert row.refunded + row.owed + claimed >= self.confirmed, (about, self.confirmed)
        assert not row.is_usable or given + claimed < PAID, about
        assert (row.status is ReceiptStatus.REFUNDED) == (given == PAID), about
        is_lost = claimed > 0 and given + claimed >= PAID
        assert (row.status is ReceiptStatus.DISPUTED) == is_lost, about

    async def _events_are_sent_once(self) -> None:
        """Check that the refund of one total is reported once, and again after it was pending."""
        rows = self.lives[0].service.elicitations.rows
        totals, last = dict[int, int](), -1
        has_pended = any(one["has_pended"] for one in self.till.refunds)
        for record in sorted(self.store.records, key=lambda one: one.kind != KINDS[Payment]):
            if record.kind == KINDS[Payment]:
                totals[record.version] = (await rows.open(record, Payment)).refunded
            elif record.kind == KINDS[OutgoingEvent] and record.version == 1:
                event = await rows.open(record, OutgoingEvent)
                total = totals[int(event.id.rpartition(".")[0][-10:])]
                assert event.type != "payment.refund_pending" or has_pended, self.till.refunds
                assert event.type not in REFUNDED or total != last, self.till.refunds
                is_known = total == last and event.type != "payment.refund_pending"
                last = total if is_known or event.type in REFUNDED else -1


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


def test_failure_of_an_earlier_refund_does_not_report_the_full_refund_again() -> None:
    machine = PartRefundsAgainstModel()
    machine.open(is_spent=False)
    machine.refund_at_dashboard(amount=300)
    machine.fail(which=0)
    machine.refund(which=0, up_to=None)
    machine.answer(which=0)
    machine.teardown()  # delivers the event about the failed refund


def test_part_refund_made_during_a_dashboard_refund_that_fails_is_recorded() -> None:
    machine = PartRefundsAgainstModel()
    machine.open(is_spent=True)
    machine.refund(which=0, up_to=600)  # the request is delayed
    machine.refund_at_dashboard(amount=None)
    machine.let_time_pass(amount={"seconds": 61})
    machine.refund_at_once(which=1, up_to=None)  # finds that everything is refunded
    machine.fail(which=0)
    machine.teardown()  # the refund of 600 is made


def test_delayed_list_of_disputes_does_not_override_a_later_won_dispute() -> None:
    machine = PartRefundsAgainstModel()
    machine.open(is_spent=True)
    machine.claim(amount=None)
    machine.deliver(which=0, process=0, again=False)
    machine.sweep(which=0)
    machine.answer(which=0)  # the request for the question of the payment
    machine.hold(which=0)  # the request for the list of disputes
    machine.let_time_pass(amount={"minutes": 10})
    machine.decide(which=0, status="won")
    machine.deliver(which=0, process=1, again=False)
    machine.till.is_open = True
    machine.sweep(which=1)
    machine.let_time_pass(amount={"seconds": 20})
    machine.release(which=0)
    machine.teardown()


def refund_that_fails_before_its_reply(
    machine: PartRefundsAgainstModel, *, up_to: int | None
) -> None:
    machine.refund(which=0, up_to=up_to)
    if up_to is not None:
        machine.answer(which=0)  # the request for the list of refunds
    machine.hold(which=0)  # the request for the refund
    machine.fail(which=0)
    failed_at_the_provider(machine)
    machine.release(which=0)
    machine.teardown()


@pytest.mark.parametrize("up_to", [300, None])
def test_delayed_reply_to_a_refund_that_has_failed_by_then_records_no_refund(
    up_to: int | None,
) -> None:
    machine = PartRefundsAgainstModel()
    machine.open(is_spent=True)
    refund_that_fails_before_its_reply(machine, up_to=up_to)


@pytest.mark.parametrize("up_to", [600, None])
def test_delayed_reply_to_a_refund_does_not_count_an_earlier_refund_that_failed(
    up_to: int | None,
) -> None:
    machine = PartRefundsAgainstModel()
    machine.open(is_spent=True)
    machine.refund_at_dashboard(amount=300)
    machine.deliver(which=0, process=1, again=False)
    refund_that_fails_before_its_reply(machine, up_to=up_to)


def failed_at_the_provider(machine: PartRefundsAgainstModel) -> None:
    """Deliver all events to the second process, which then checks all refunds."""
    machine.till.is_open = True
    while machine.till.post:
        machine.deliver(which=0, process=1, again=False)
    for _ in range(2):
        machine.sweep(which=1)
    machine.till.is_open = False


def test_repeated_part_refund_after_a_restored_backup_records_the_providers_total() -> None:
    machine = PartRefundsAgainstModel()
    machine.open(is_spent=True)
    for amount in (300, 300):  # the backup that was restored lacks both
        machine.till.refund(amount, metadata=machine.till.metadata)
    machine.till.post.clear()
    machine.refund_at_once(which=0, up_to=300)
    machine.asked.append(600)
    machine.teardown()
