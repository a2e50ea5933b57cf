"""Any sequence of actions by a person, a provider, a tool and a crash keeps payments correct.

The whole application and the sandbox's checkout are served. The model knows which sessions are paid
at the provider, which events were acknowledged, and which receipts were in a sent result.
"""

import asyncio
import functools
import inspect
import json
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flows import Money, elicit
from flows.elicitation.states import Status, can_still_be_stored
from flows.elicitation.tool_call import ToolCall
from flows.errors import ElicitError, NotPossible
from flows.payments.events import ON_ITS_WAY
from flows.question import asking
from tests.support.disputes import CLOSED, claim
from tests.support.mcp_server import eventually
from tests.support.service_env import Holding
from tests.support.shop_env import CREATE, Payer, Shop, open_shop
from webapp.calls.call import Call, Interrupted
from webapp.calls.verbs import Verbs
from webapp.elicitations.waiters import Waiter

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from flows import Receipt
    from flows.elicitation.states import Elicitation
    from flows.payments.receipt import Payment

HALF_AN_HOUR = timedelta(minutes=30)
PRICES = {"tea": Money("9.00", "EUR"), "coffee": Money("90.00", "EUR")}
topics = st.sampled_from(list(PRICES))
rarely = st.sampled_from([False, False, False, True])
some = st.integers(min_value=0, max_value=5)
Step: TypeAlias = Callable[..., None]


@dataclass
class ModelledRequest:
    """A call of the tool. A body that has a receipt waits until the test sets `may_go_on`."""

    topic: str
    call: Call
    presenter: Holding
    may_go_on: asyncio.Event = field(default_factory=asyncio.Event)
    work: str = ""
    error_text: str = ""
    receipt: "Receipt | None" = None
    is_finished: bool = False
    is_dead: bool = False
    task: "asyncio.Task[None]" = field(init=False)

    @property
    def is_asked(self) -> bool:
        return self.presenter.shown is not None

    @property
    def is_waiting(self) -> bool:
        """True if the body waits for its question, or for another call with the same question."""
        waits_for: object = self.task.get_coro()
        while inspect.iscoroutine(waits_for):
            if waits_for.cr_code is Waiter.changes.__code__:
                return True
            waits_for = waits_for.cr_await
        return False

    async def run(self) -> None:
        self.call.begin()
        try:
            with asking(Verbs(self.call)):
                await self.body()
        except Interrupted:
            await self.call.finish()
            # True if the call returned the result of an earlier call.
            self.is_finished = isinstance(self.call.answer, dict)
        except asyncio.CancelledError:
            if not self.is_dead:
                await self.call.finish()
            raise
        else:
            paid = None if self.receipt is None else self.receipt.id
            await self.call.finish(lambda: json.dumps({"paid": paid}))
            self.is_finished = True

    async def body(self) -> None:
        try:
            question = elicit.payment(PRICES[self.topic], "Premium report", timeout=HALF_AN_HOUR)
            outcome = await question.outcome()
            if outcome.accepted:
                self.receipt = outcome.content
                await self.may_go_on.wait()
                await self.use(self.receipt)
        except ElicitError as error:  # the model receives the error, and the call has ended
            self.error_text = str(error)

    async def use(self, receipt: "Receipt | None") -> None:
        assert receipt is not None
        if self.work == "spend":
            await receipt.spend()
        elif self.work == "refund":
            with suppress(NotPossible):  # an earlier body, which died, spent the payment
                await receipt.refund()


def where(there_is: Callable[[Any], object]) -> Callable[[Step], Step]:
    """Return a decorator that skips a step if `there_is` returns a false value for the machine.

    A Hypothesis precondition would change the drawn values between two runs of one example, because
    an event in transit can arrive slightly sooner or later.
    """

    def held(step: Step) -> Step:
        @functools.wraps(step)
        def careful(self: Any, **drawn: Any) -> None:
            if there_is(self):
                step(self, **drawn)

        return careful

    return held


class PaymentsAgainstModel(RuleBasedStateMachine):
    """Rules grouped by actor."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.stack = AsyncExitStack()
        self.requests: list[ModelledRequest] = []
        self.topic_of: dict[str, str] = {}  # by elicitation id
        self.tills: dict[str, str] = {}  # checkout pages by session
        self.ways_back: list[str] = []
        self.claims: dict[str, str] = {}  # how each dispute ended ("" if open), by payment id
        self.acknowledged: set[str] = set()  # paid sessions whose event was acknowledged
        # Ids of the runs whose result contained the receipt, by receipt id.
        self.delivered: dict[str, set[str]] = {}

    def do(self, work: "Coroutine[Any, Any, Any]") -> Any:
        return self.loop.run_until_complete(work)

    @initialize()
    def open(self) -> None:
        self.shop: Shop = self.do(self.stack.enter_async_context(open_shop()))
        self.person: Payer = self.do(self.shop.person())

    def teardown(self) -> None:
        try:
            if hasattr(self, "shop"):
                self.do(self.end_well())
        finally:
            self.do(self.drop_requests())
            self.do(self.stack.aclose())
            self.do(self.loop.shutdown_default_executor())
            self.loop.close()

    # The tool.

    @rule(topic=topics)
    def call(self, topic: str) -> None:
        self.do(self._call(topic))

    async def _call(self, topic: str) -> ModelledRequest:
        is_paid = await self.is_first_money_there(topic)
        service = self.shop.service
        presenter = Holding()
        call = Call(
            service,
            service.identity.caller(None, subject=None, client="c"),
            ToolCall(server="shop", tool="report", client="c", arguments=json.dumps(topic)),
            presenter=presenter,
        )
        request = ModelledRequest(topic=topic, call=call, presenter=presenter)
        request.task = asyncio.create_task(request.run())
        self.requests.append(request)
        # The server may first ask the provider whether an earlier payment has arrived.
        await eventually(lambda: request.is_waiting or request.receipt or request.task.done())
        await self.calm()
        if request.presenter.shown is not None:
            self.topic_of[request.presenter.shown.elicitation.id] = topic
        assert not (is_paid and request.is_asked), "a person who has paid is not asked to pay again"
        return request

    @precondition(lambda self: self.topic_of)
    @rule(topic=topics)
    def give_up(self, topic: str) -> None:
        self.do(self._give_up(topic))

    async def _give_up(self, topic: str) -> None:
        for request in [
            request
            for request in self.requests
            if request.topic == topic and request.receipt is None
        ]:
            self.requests.remove(request)
            request.task.cancel()
            await asyncio.wait({request.task})
        await self.calm()

    @precondition(lambda self: self.topic_of)
    @rule(topic=topics, work=st.sampled_from(["", "spend", "refund"]), arrives=st.booleans())
    def use(self, topic: str, work: str, arrives: bool) -> None:
        """Let the bodies of this topic finish. Their results arrive or are cut off."""
        self.do(self._use(topic, work, arrives=arrives))

    async def _use(self, topic: str, work: str, *, arrives: bool) -> None:
        for request in [request for request in self.requests if request.topic == topic]:
            request.work = work
            request.may_go_on.set()
            if request.receipt is not None or request.task.done():
                if not request.task.done():
                    await asyncio.wait({request.task})
                await request.task
                self.requests.remove(request)
                if arrives and request.is_finished:
                    await self.arrive(request)
        await self.calm()

    async def arrive(self, request: ModelledRequest) -> None:
        await request.call.delivered()
        result = request.call.answer
        paid = result.get("paid") if isinstance(result, dict) else None
        if request.receipt is not None:
            paid = request.receipt.id
        if paid is not None:
            self.delivered.setdefault(paid, set()).add(request.call.run.value.id)
            statuses = {p.id: str(p.status) for p in await self.shop.payments()}
            assert statuses[paid] not in ("open", "taken"), (
                "a delivered payment cannot be used again"
            )

    # The person.

    @precondition(lambda self: self.topic_of)
    @rule(topic=topics, times=st.sampled_from([1, 1, 2]))
    def press(self, topic: str, times: int) -> None:
        self.do(self._press(topic, times=times))

    @rule(
        topic=topics,
        button=st.sampled_from(["card", "card", "bank"]),
        returns=st.booleans(),
        is_reported=st.booleans(),
    )
    def be_asked_and_pay(self, topic: str, button: str, returns: bool, is_reported: bool) -> None:
        """Ask and pay in one step, so that later states are reached more often."""
        self.do(self._call(topic))
        self.do(self._press(topic, times=1))
        if self.tills:
            self.do(self._at_the_checkout(len(self.tills) - 1, button, returns=returns))
        while is_reported and self.shop.post:
            self.do(self._send(self.shop.post.pop()))

    @rule(topic=topics, is_by_bank=st.booleans(), is_down=st.booleans())
    def pay_and_lose_event(self, topic: str, is_by_bank: bool, is_down: bool) -> None:
        """Pay without an event and without the person coming back.

        The provider may also be down.
        """
        posted = len(self.shop.post)
        self.do(self._call(topic))
        self.do(self._press(topic, times=1))
        if not self.tills:
            return
        payment_env, button = len(self.tills) - 1, "bank" if is_by_bank else "card"
        self.do(self._at_the_checkout(payment_env, button, returns=False))
        if is_down:
            self.be_down_for_longer_than_a_checkout_lives()
        if is_by_bank:
            self.let_time_pass({"minutes": 31})
            self.do(self._sweep())
            self.do(self._at_the_checkout(payment_env, "arrive", returns=False))
        del self.shop.post[posted:]

    async def _press(self, topic: str, *, times: int) -> None:
        link = await self.link(topic)
        page = None if link is None else await self.person.visit(link)
        if link is None or page is None or page.csrf is None:
            return
        gate = self.shop.line.held[CREATE] = asyncio.Event()
        pressing = []
        made = self.shop.line.count(CREATE)
        for _ in range(times):
            press = asyncio.ensure_future(self.person.browser.post(link, data={"csrf": page.csrf}))
            pressing.append(press)
            # A second press waits for the first one, whose request to the provider is held.
            await eventually(lambda: pressing[0].done() or self.shop.line.count(CREATE) > made)
            await self.calm()
        del self.shop.line.held[CREATE]
        gate.set()
        for press in pressing:
            answer = await press
            assert answer.status_code in (303, 429, 502), answer.text
            location = answer.headers.get("location", "")
            if location.startswith(f"{self.shop.sandbox.url}/pay/"):
                self.tills[urlsplit(location).path.rsplit("/", 1)[1]] = location
        await self.calm()

    @precondition(lambda self: self.topic_of)
    @rule(topic=topics, is_sure=rarely)
    def decline(self, topic: str, is_sure: bool) -> None:
        if is_sure:
            self.do(self._decline(topic))

    async def _decline(self, topic: str) -> None:
        link = await self.link(topic)
        if link is not None and "/decline" in (await self.person.visit(link)).text:
            await self.person.press(link, to="/decline")
        await self.calm()

    @rule(
        which=some,
        button=st.sampled_from(["card", "card", "declined", "bank", "arrive", "fail", "cancel"]),
        returns=st.booleans(),
    )
    @where(lambda self: self.tills)
    def at_the_checkout(self, which: int, button: str, returns: bool) -> None:
        self.do(self._at_the_checkout(which, button, returns=returns))

    async def _at_the_checkout(self, which: int, button: str, *, returns: bool) -> None:
        payment_env = list(self.tills.values())[which % len(self.tills)]
        if f'/{button}">' not in (await self.person.browser.get(payment_env)).text:
            return
        back = await self.person.press_there(payment_env, button)
        if back.startswith(self.shop.url):
            self.ways_back.append(back)
            if returns:
                await self.person.visit(back)
        await self.calm()

    @rule(which=some)
    @where(lambda self: self.ways_back)
    def come_back(self, which: int) -> None:
        back = self.ways_back[which % len(self.ways_back)]
        page = self.do(self.person.visit(back))
        assert page.status in (303, 403, 404, 410), f"{page.status} {page.heading}"
        self.do(self.calm())

    # The provider.

    @rule(which=some, comes_again=st.booleans())
    @where(lambda self: self.shop.post)
    def send_event(self, which: int, comes_again: bool) -> None:
        post = self.shop.post
        body = post[which % len(post)]
        if not comes_again:
            post.remove(body)
        self.do(self._send(body))

    async def _send(self, body: bytes) -> None:
        answer = await self.shop.send(body)
        assert answer.status_code == 200, answer.text
        session = json.loads(body)["data"]["object"]
        if session.get("payment_status") == "paid":
            self.acknowledged.add(session["id"])
        await self.calm()

    @rule(which=some)
    @where(lambda self: self.shop.post)
    def lose_an_event(self, which: int) -> None:
        """Lose a checkout event.

        Events about refunds and disputes are not lost: nothing else reports them to the server.
        """
        body = self.shop.post[which % len(self.shop.post)]
        if json.loads(body)["type"].startswith("checkout.session."):
            self.shop.post.remove(body)

    @rule(which=some, amount=st.sampled_from(["", "", "100", "300"]))
    @where(lambda self: self.tills)
    def refund_at_provider(self, which: int, amount: str) -> None:
        """Refund a payment at the provider, in full or in part."""
        self.do(self._refund_at_provider(which, amount))

    async def _refund_at_provider(self, which: int, amount: str) -> None:
        payment = await self.payment_of_the(which)
        if payment is None or payment.payment_intent is None:
            return
        left = payment.amount - await self.refunded(payment)
        if int(amount or 1) <= left:
            about = {"amount": amount} if amount else {}
            await self.shop.refund_at_provider(payment.payment_intent, **about)

    @rule(which=some, ends=st.sampled_from(["", "won", "lost"]), is_reversed=st.booleans())
    @where(lambda self: self.tills)
    def claim_back(self, which: int, ends: str, is_reversed: bool) -> None:
        """Let a bank dispute a payment, and perhaps close the dispute."""
        self.do(self._claim_back(which, ends, is_reversed=is_reversed))

    async def _claim_back(self, which: int, ends: str, *, is_reversed: bool) -> None:
        payment = await self.payment_of_the(which)
        if payment is None or self.claims.get(payment.id, "") != "":
            return
        id = f"dp_{payment.session[-8:]}"
        events = [claim(payment, id=id)] if payment.id not in self.claims else []
        if ends:
            events.append(claim(payment, CLOSED, id=id, status=ends))
        self.claims[payment.id] = ends
        events = events[::-1] if is_reversed else events
        self.shop.post += [json.dumps(event).encode() for event in events]

    @precondition(lambda self: self.topic_of)
    @rule(words=st.sampled_from([CREATE, "/expire", "POST /stripe/v1/refunds"]))
    def lose_a_reply(self, words: str) -> None:
        self.shop.line.lost[:] = [words]

    @precondition(lambda self: self.topic_of)
    @rule(is_down=rarely)
    def go_down_or_up(self, is_down: bool) -> None:
        self.shop.line.is_down = is_down

    @rule()
    @where(lambda self: self.tills)
    def be_down_for_longer_than_a_checkout_lives(self) -> None:
        was_down, self.shop.line.is_down = self.shop.line.is_down, True
        for _ in range(2):
            self.let_time_pass({"minutes": 31})
            self.do(self._sweep())
        self.shop.line.is_down = was_down

    # Time and crashes.

    @precondition(lambda self: self.topic_of)
    @rule(amount=st.sampled_from([{"seconds": 31}, {"minutes": 10}, {"minutes": 31}, {"days": 7}]))
    def let_time_pass(self, amount: dict[str, int]) -> None:
        self.shop.clock.tick(**amount)
        # By now, the result of each ended call was sent, or its connection was cut.
        self.requests = [request for request in self.requests if not request.task.done()]
        for call in self.running():
            self.do(call.renew())  # as the process does every ten seconds

    def running(self) -> list[Call]:
        return [
            request.call for request in self.requests if request.receipt and not request.task.done()
        ]

    @precondition(lambda self: self.topic_of)
    @rule()
    def sweep(self) -> None:
        self.let_time_pass({"seconds": 31})
        self.do(self._sweep())

    async def _sweep(self) -> None:
        await self.shop.sweep(running=self.running())
        await self.calm()

    @precondition(lambda self: self.topic_of)
    @rule()
    def crash(self) -> None:
        """Restart the process. The store and the provider stay unchanged."""
        self.do(self.drop_requests())
        self.do(self.shop.restart())

    # Invariants.

    @invariant()
    def the_ledger_and_the_questions_agree_with_the_provider(self) -> None:
        if hasattr(self, "shop"):
            self.do(self._agrees())

    async def _agrees(self) -> None:
        payments = await self.shop.payments()
        asked = {elicitation.id: elicitation for elicitation in await self.shop.asked()}
        assert len({payment.session for payment in payments}) == len(payments)
        for payment in payments:
            session = await self.shop.session(payment.session)
            assert session["payment_status"] == "paid", "each payment row has a paid session"
            assert session["client_reference_id"] == payment.elicitation_id
            topic = self.topic_of[payment.elicitation_id]
            assert payment.price == PRICES[topic]
        rows = {payment.session for payment in payments}
        assert self.acknowledged <= rows, "each acknowledged session has a payment row"
        for elicitation in asked.values():
            if elicitation.status is Status.ACCEPTED:
                assert elicitation.id in {payment.elicitation_id for payment in payments}
        for runs in self.delivered.values():
            assert len(runs) == 1, "a payment is delivered to only one run"
        for request in self.requests:
            if request.receipt is not None:
                (payment,) = [p for p in payments if p.id == request.receipt.id]
                assert payment.price == PRICES[request.topic]

    async def end_well(self) -> None:
        """Deliver all events, let time pass, and check that each paid session has its row."""
        self.shop.line.is_down = False
        self.shop.line.lost.clear()
        await self.drop_requests()
        while self.shop.post:
            await self._send(self.shop.post.pop())
        for _ in range(3):
            self.shop.clock.tick(minutes=31)
            await self._sweep()
        await self._agrees()
        # After two days, the server retries unanswered requests to the provider and failed refunds.
        self.shop.clock.tick(days=2)
        await self._sweep()
        rows = {payment.session for payment in await self.shop.payments()}
        await self.money_is_where_the_ledger_says()
        for id in self.tills:
            session = await self.shop.session(id)
            assert session["status"] != "open", "each checkout must be closed at the end"
            assert (session["payment_status"] == "paid") == (id in rows)
        for topic in PRICES:
            await self.can_be_bought(topic)
        await self._agrees()
        await self.money_is_where_the_ledger_says()

    async def money_is_where_the_ledger_says(self) -> None:
        for payment in await self.shop.payments():
            refunded = await self.refunded(payment)
            assert payment.refunded == refunded, (
                "the refunded amount equals the amount at the provider"
            )
            assert (payment.status == "refunded") == (refunded == payment.amount)
            assert payment.status != "refunding", "each refund that was begun must end"
            if payment.id in self.claims and payment.status != "refunded":
                is_claimed = self.claims[payment.id] != "won"
                assert (payment.status == "disputed") == is_claimed
            if payment.id in self.delivered and payment.status != "refunded":
                assert payment.spent_at is not None, "each delivered payment is marked as spent"

    async def refunded(self, payment: "Payment") -> int:
        return sum(
            refund["amount"]
            for refund in await self.shop.refunds()
            if refund["payment_intent"] == payment.payment_intent
        )

    async def payment_of_the(self, which: int) -> "Payment | None":
        payments = await self.shop.payments()
        return payments[which % len(payments)] if payments else None

    async def can_be_bought(self, topic: str) -> None:
        """Check that a call gets a receipt, from an existing payment or after one new payment."""
        request = await self._call(topic)
        if request.is_asked:
            rows = len(await self.shop.payments())
            await self._press(topic, times=1)
            await self._at_the_checkout(len(self.tills) - 1, "card", returns=False)
            while self.shop.post:
                await self._send(self.shop.post.pop())
            assert len(await self.shop.payments()) == rows + 1
            # The server may ask the provider whether the payment was refunded.
            await eventually(lambda: request.receipt or request.task.done())
        if request.receipt is None:  # refunded before a crash: one call reports the refund
            assert request.is_finished
            assert not request.is_asked
            self.requests.remove(request)
            if ON_ITS_WAY in request.error_text:
                await self.it_arrives(topic)
                await self.can_be_bought(topic)
            return
        await self._use(topic, "spend", arrives=True)
        assert not self.requests

    async def it_arrives(self, topic: str) -> None:
        """Let the pending payment arrive at the provider, without an event to the server."""
        pending = [
            number
            for number, id in enumerate(self.tills)
            if (session := await self.shop.session(f"{id}?expand[]=payment_intent"))["status"]
            == "complete"
            and session["payment_intent"]["status"] == "processing"
            and self.topic_of[session["client_reference_id"]] == topic
        ]
        assert pending, "a payment reported as on its way must be processing at the provider"
        for number in pending:
            await self._at_the_checkout(number, "arrive", returns=False)
        self.shop.post.clear()  # no event arrives, so the call asks the provider

    async def is_first_money_there(self, topic: str) -> bool:
        """Return True if the topic was paid for and the payment is neither used nor refunded.

        A call finds an earlier payment through its question, which is stored for thirty days. After
        that, the payment can only be refunded.
        """
        now = self.shop.clock()
        ids = {
            one.id
            for one in await self.shop.asked()
            if self.topic_of.get(one.id) == topic and can_still_be_stored(one, now)
        }
        payments = [p for p in await self.shop.payments() if p.elicitation_id in ids]
        return bool(payments) and all(
            p.status == "open" and not p.disputes and p.id not in self.delivered for p in payments
        )

    async def link(self, topic: str) -> str | None:
        """Return the link of the latest question about the topic."""
        found: list[Elicitation] = [
            e for e in await self.shop.asked() if self.topic_of.get(e.id) == topic
        ]
        if not found:
            return None
        return self.shop.service.links.of(found[-1], now=self.shop.clock())

    async def drop_requests(self) -> None:
        tasks = [request.task for request in self.requests]
        for request in self.requests:
            request.is_dead = True
            request.task.cancel()
        self.requests.clear()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def calm(self) -> None:
        """Run everything that is ready."""
        for _ in range(60):
            await asyncio.sleep(0)
        for request in self.requests:
            if request.task.done() and not request.task.cancelled():
                request.task.result()


TestPaymentsAgainstModel = PaymentsAgainstModel.TestCase
TestPaymentsAgainstModel.settings = settings(
    max_examples=25,
    stateful_step_count=40,  # many steps find nothing to do
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
