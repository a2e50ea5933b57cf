"""Payments at a declared provider stay correct in any order of events and failures.

A service sells through the provider that the documentation declares. The provider's events are
lost, late, repeated and out of order, and the provider is sometimes down.
"""

import asyncio
import tempfile
from collections import Counter
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flows.errors import ElicitError, NotPossible
from flows.payments.receipt import ReceiptStatus
from flows.payments.refunds import UnderWay
from tests.support.acme import DECLARED, Acme, declared, send
from tests.support.payment_env import PaymentEnv, selling
from webapp.sweeper import fall_due

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from flows.elicitation.states import Elicitation
    from flows.payments.receipt import Payment

some = st.integers(min_value=0, max_value=2)
PRICE = 900
totals = st.sampled_from([300, 600, None])  # the total of a refund; None refunds everything
ROUNDS_WHILE_DOWN = 10
ROUNDS_AT_MOST = 1000  # only an endless loop runs this often


class DeclaredAgainstModel(RuleBasedStateMachine):
    """Rules grouped by actor. The provider's own records are the model."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.stack = AsyncExitStack()
        self.acme = Acme()
        self.asked: list[Elicitation] = []
        self.post: list[tuple[str, bytes]] = []  # the provider's events, oldest first
        self.sent = 0
        self.won: set[str] = set()  # the checkouts whose claim the seller has won; it is the last
        self.asked_back: Counter[str] = Counter()  # the highest requested total, by checkout
        self.at_dashboard: Counter[str] = Counter()  # refunded at the dashboard, by checkout

    def do(self, work: "Coroutine[Any, Any, Any]") -> Any:
        return self.loop.run_until_complete(work)

    @initialize()
    def open(self) -> None:
        folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        text = DECLARED + 'news = { "claim.won" = "won" }\n'
        seller = declared(text, folder=Path(folder))
        self.payment_env: PaymentEnv = self.do(
            self.stack.enter_async_context(selling(seller, self.acme))
        )

    def teardown(self) -> None:
        try:
            if hasattr(self, "payment_env"):
                self.do(self.end_well())
        finally:
            self.do(self.stack.aclose())
            self.do(self.loop.shutdown_default_executor())
            self.loop.close()

    # The person.

    @rule()
    def ask(self) -> None:
        self.asked.append(self.do(self.payment_env.asked(join=f"question {len(self.asked)}")))

    @precondition(lambda self: self.asked)
    @rule(which=some, loses_reply=st.booleans())
    def go_on(self, which: int, loses_reply: bool) -> None:
        self.acme.loses = "/checkouts" if loses_reply else None
        with suppress(ElicitError):
            self.do(self.payment_env.go_on(self.asked[which % len(self.asked)]))
        self.acme.loses = None

    @rule(is_reported=st.booleans(), is_acknowledged=st.booleans())
    def buy(self, is_reported: bool, is_acknowledged: bool) -> None:
        """Ask, go to the checkout and pay in one step, so that later states occur more often."""
        self.ask()
        made = len(self.acme.checkouts)
        self.go_on(len(self.asked) - 1, loses_reply=False)
        if len(self.acme.checkouts) > made:
            self.pay(made, "paid", is_reported)
            if is_reported and is_acknowledged:
                self.do(self._send(*self.post.pop()))

    @precondition(lambda self: self.acme.checkouts)
    @rule(
        which=some,
        state=st.sampled_from(["paid", "paid", "paid", "pending", "failed"]),
        is_reported=st.booleans(),
    )
    def pay(self, which: int, state: str, is_reported: bool) -> None:
        """Set a checkout's payment state at the provider.

        A pending payment arrives or fails later.
        """
        id, checkout = self.checkout(which)
        if checkout["state"] in ("open", "pending") and checkout["state"] != state:
            event = self.acme.pay(id, state=state)
            self.post += [self.named(event)] if is_reported else []

    @precondition(lambda self: self.asked)
    @rule(which=some)
    def come_back(self, which: int) -> None:
        with suppress(ElicitError):
            self.do(self.ask_provider(self.asked[which % len(self.asked)]))

    async def ask_provider(self, asked: "Elicitation") -> None:
        elicitation = await self.payment_env.service.elicitations.get(asked.id)
        if elicitation is not None:
            await self.payment_env.service.kinds.payments.checkouts.ask_provider(elicitation)

    # The provider.

    @precondition(lambda self: self.acme.checkouts)
    @rule(
        which=some,
        field=st.sampled_from(["refunded", "charged_back"]),
        amount=st.sampled_from([300, PRICE]),
    )
    def take_back(self, which: int, field: str, amount: int) -> None:
        """Refund or claim an amount at the provider.

        The provider always sends an event for both.
        """
        id, checkout = self.checkout(which)
        if field == "charged_back" and id in self.won:
            return
        gone = checkout["refunded"] + checkout["charged_back"] - checkout[field]
        if checkout["state"] == "paid" and checkout[field] < amount <= PRICE - gone:
            self.at_dashboard[id] += amount - checkout[field] if field == "refunded" else 0
            checkout[field] = amount
            self.post.append(self.named(self.acme.event(id)))

    @precondition(lambda self: self.acme.checkouts)
    @rule(which=some)
    def win_claim(self, which: int) -> None:
        id, checkout = self.checkout(which)
        if checkout["charged_back"]:
            checkout["charged_back"] = 0
            self.won.add(id)
            won = self.acme.event(id).replace(b"checkout.updated", b"claim.won")
            self.post.append(self.named(won))

    @rule(state=st.sampled_from(["succeeded", "pending"]))
    def switch(self, state: str) -> None:
        """Set the state of new refunds. Acme counts a pending refund at once."""
        self.acme.refund_state = state

    @precondition(lambda self: self.acme.checkouts)
    @rule(which=some, comes_again=st.booleans())
    def send_event(self, which: int, comes_again: bool) -> None:
        if not self.post:
            return
        name, event = self.post[which % len(self.post)]
        if not comes_again:
            self.post.remove((name, event))
        self.do(self._send(name, event))

    async def _send(self, name: str, event: bytes) -> None:
        answer = await send(self.payment_env, event, id=name)
        assert answer.status_code in (200, 503), answer.text
        if answer.status_code == 503:
            self.post.append((name, event))  # the provider sends the event again

    @rule(is_down=st.booleans())
    def go_down_or_up(self, is_down: bool) -> None:
        self.acme.is_down = is_down

    # The server.

    @precondition(lambda self: self.acme.checkouts)
    @rule(
        which=some,
        trouble=st.sampled_from([None, None, "loses", "refuses"]),
        at_once=st.lists(totals, min_size=1, max_size=2),
    )
    def refund(self, which: int, trouble: str | None, at_once: list[int | None]) -> None:
        self.do(self._refund(which, trouble=trouble, at_once=at_once))

    async def _refund(self, which: int, *, trouble: str | None, at_once: list[int | None]) -> None:
        payments = await self.payments()
        if not payments:
            return
        payment = payments[which % len(payments)]
        self.acme.loses = "/refunds" if trouble == "loses" else None
        self.acme.refuses = "/refunds" if trouble == "refuses" else None
        asking = [
            self.payment_env.service.kinds.payments.refunds.refund(
                payment.owner, payment.id, reason=None, up_to=up_to
            )
            for up_to in at_once
        ]
        outcomes = await asyncio.gather(*asking, return_exceptions=True)
        for up_to, outcome in zip(at_once, outcomes, strict=True):
            assert isinstance(outcome, ElicitError) or not isinstance(outcome, Exception), outcome
            if not isinstance(outcome, (NotPossible, UnderWay)):
                self.want_back(payment, up_to or PRICE)
        self.acme.loses = self.acme.refuses = None

    def want_back(self, payment: "Payment", total: int) -> None:
        self.asked_back[payment.session] = max(self.asked_back[payment.session], total)

    @rule(amount=st.sampled_from([{"seconds": 31}, {"minutes": 10}, {"minutes": 31}, {"days": 3}]))
    def let_time_pass(self, amount: dict[str, int]) -> None:
        self.payment_env.clock.tick(**amount)
        self.do(self.sweep())

    async def sweep(self) -> None:
        """Sweep until nothing is due. Questions for a provider that is down stay due."""
        for _ in range(ROUNDS_WHILE_DOWN if self.acme.is_down else ROUNDS_AT_MOST):
            self.payment_env.clock.tick(seconds=31)
            for payment in await self.payments():
                is_due = payment.due_at is not None and payment.due_at <= self.payment_env.clock()
                if is_due and payment.status is ReceiptStatus.OPEN and payment.part is None:
                    self.want_back(payment, PRICE)  # an unused payment is refunded in full
            if not await fall_due(self.payment_env.service):
                return
        assert self.acme.is_down, "the sweeper must finish while the provider is reachable"

    # Invariants.

    @invariant()
    def nothing_is_in_the_ledger_that_was_not_paid_and_nothing_twice(self) -> None:
        if hasattr(self, "payment_env"):
            self.do(self._agrees())

    async def _agrees(self) -> None:
        payments = await self.payments()
        assert max(Counter(p.session for p in payments).values(), default=1) == 1
        for payment in payments:
            checkout = self.acme.checkouts[payment.session]
            assert checkout["state"] == "paid", "each payment row has a paid checkout"
            gone = checkout["refunded"] + checkout["charged_back"]
            assert gone <= PRICE, "refunds and chargebacks do not exceed the price"
            most = self.asked_back[payment.session] + self.at_dashboard[payment.session]
            assert checkout["refunded"] <= most, "no more is refunded than was asked for"

    async def end_well(self) -> None:
        self.acme.is_down, self.acme.loses = False, None
        self.acme.refund_state = "succeeded"
        for name, event in reversed([*self.post]):
            await self._send(name, event)
        for amount in ({"minutes": 31}, {"minutes": 31}, {"days": 2}, {"days": 2}):
            self.payment_env.clock.tick(**amount)
            await self.sweep()
        await self._agrees()
        rows = {payment.session: payment for payment in await self.payments()}
        for id, checkout in self.acme.checkouts.items():
            assert checkout["state"] != "open", "each checkout must be closed at the end"
            assert (checkout["state"] == "paid") == (id in rows), (
                "each paid checkout has a payment row"
            )
        for id, payment in rows.items():
            checkout = self.acme.checkouts[id]
            assert payment.refunded == checkout["refunded"], (
                "the refunded amount equals the amount at the provider"
            )
            assert payment.status is not ReceiptStatus.REFUNDING, (
                "each refund that was begun must end"
            )
            assert payment.part is None, "each refund of a part must end"
            is_gone = checkout["refunded"] + checkout["charged_back"] >= PRICE
            assert not (payment.is_usable and is_gone), "no payment is usable without its money"
            is_back = checkout["refunded"] == PRICE
            assert (payment.status is ReceiptStatus.REFUNDED) == is_back
            is_claimed = 0 < checkout["charged_back"] >= PRICE - checkout["refunded"]
            is_disputed = is_claimed and not is_back  # a claim of a part leaves the rest usable
            assert (payment.status is ReceiptStatus.DISPUTED) == is_disputed

    async def payments(self) -> "list[Payment]":
        return await self.payment_env.service.kinds.payments.ledger.all()

    def checkout(self, which: int) -> tuple[str, dict[str, Any]]:
        id = list(self.acme.checkouts)[which % len(self.acme.checkouts)]
        return id, self.acme.checkouts[id]

    def named(self, event: bytes) -> tuple[str, bytes]:
        self.sent += 1
        return f"msg_{self.sent}", event


TestDeclaredAgainstModel = DeclaredAgainstModel.TestCase
TestDeclaredAgainstModel.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_hypothesis_example_database_is_disabled() -> None:
    # finding: T3
    assert settings.default is not None
    assert settings.default.database is None
    assert TestDeclaredAgainstModel.settings.database is None
