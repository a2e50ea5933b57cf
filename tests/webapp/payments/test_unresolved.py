"""Unresolved payments: when they are polled, what they block, and how they end."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace as with_others
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from flows import Money, Receipt, elicit
from flows.elicitation.states import Elicitation, Status
from flows.errors import Expired, Failed, StoreUnavailable
from flows.payments.mollie.gateway import mollie
from flows.payments.receipt import ReceiptStatus
from flows.payments.session import UnresolvedStatus, terms_of
from flows.question import asking
from flows.requests import PaymentRequest
from tests.support.acme import (
    DECLARED,
    Acme,
    Forgetful,
    begun,
    declared,
    ledger,
    left_pending,
    note_of_open_payment,
    send,
)
from tests.support.payment_env import Mollie, PaymentEnv, selling
from tests.support.service_env import Holding, call_of
from webapp.calls.call import Call
from webapp.calls.verbs import Verbs
from webapp.elicitations.question_kind import AskedBy
from webapp.stores import Record
from webapp.stores.sqlite import MemoryStore
from webapp.sweeper import fall_due

# One bad row.


class Damaged(MemoryStore):
    """A store in which one row can be read but not written."""

    bad: str | None = None

    async def write(self, *records: Record) -> tuple[Record, ...]:
        if any(record.id == self.bad for record in records):
            raise StoreUnavailable("its page on the disk is bad")
        return await super().write(*records)


@pytest.mark.parametrize("is_readable", [False, True])
async def test_unreadable_or_unwritable_row_does_not_block_other_rows(
    acme: Acme, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_readable: bool
) -> None:
    store = Damaged()
    async with selling(declared(DECLARED, folder=tmp_path), acme, store=store) as payment_env:
        bad = await payment_env.asked("the first one")
        payment_env.clock.tick(seconds=1)
        others = [await payment_env.asked(join) for join in ("the second one", "the third one")]
        for asked in others:
            await payment_env.go_on(asked)
        for id in acme.checkouts:
            acme.pay(id)
        if is_readable:
            store.bad = bad.id
        else:
            (record,) = [row for row in await store.list("elicitation") if row.id == bad.id]
            await store.write(replace(record, sealed=b"a torn page"))
        payment_env.clock.tick(minutes=31)
        for _ in range(2):
            payment_env.clock.tick(seconds=31)
            assert await fall_due(payment_env.service) == 3
        assert [(await payment_env.now(asked)).status for asked in others] == [Status.ACCEPTED] * 2
        assert await ledger(payment_env) == [ReceiptStatus.OPEN] * 2
        word = "store.unavailable" if is_readable else "record.unreadable"
        assert caplog.messages.count(word) == 2
        if is_readable:  # as soon as the row can be written, the sweep ends its question
            store.bad = None
            await payment_env.sweep()
            assert (await payment_env.now(bad)).status is Status.EXPIRED


# Questions that an unresolved payment blocks.


async def ask_the_same(
    payment_env: PaymentEnv, asked: Elicitation, *, what: str | None = None, **others: Any
) -> None:
    """Ask for the same payment again. `others` replaces the owner, server or tool."""
    by = AskedBy(owner=asked.owner, server=asked.request.server, tool=asked.request.tool)
    terms, link = (
        terms_of(asked),
        payment_env.service.links.for_author(
            elicitation_id=asked.id, expires_at=asked.expires_at, now=payment_env.clock()
        ),
    )
    request = PaymentRequest(price=terms.price, what=what or terms.what, seller=terms.seller)
    payments = payment_env.service.kinds.payments
    await payments.asked(request, asked.request, link=link, by=with_others(by, **others))


@pytest.mark.parametrize("state", ["pending", "otherwise"])
async def test_same_payment_is_not_asked_for_again_while_unresolved(
    payment_env: PaymentEnv, acme: Acme, state: str
) -> None:
    asked = await left_pending(payment_env, acme)
    if state == "otherwise":
        acme.pay()
        acme.checkouts["co-1"]["amount"] = 400
    words = "on its way" if state == "pending" else "paid differently than requested"
    with pytest.raises(Failed, match=words):
        await ask_the_same(payment_env, asked)
    await ask_the_same(payment_env, asked, what="Another report")
    await ask_the_same(payment_env, asked, owner="another owner of them")
    await ask_the_same(payment_env, asked, server="their other server")
    await ask_the_same(payment_env, asked, tool="another tool of that server")
    if state == "pending":
        acme.pay(state="failed")
        await ask_the_same(payment_env, asked)


async def test_unresolved_payment_blocks_the_same_question_even_after_100_others(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await left_pending(payment_env, acme)
    (loose,) = await payment_env.unresolved()
    for number in range(100):  # the store lists each of these before `loose`
        another = replace(
            loose, id=f"{loose.owner}-{number:023}", what=f"Report {number}", version=0
        )
        await payment_env.service.elicitations.write(another)
    with pytest.raises(Failed, match="on its way"):
        await ask_the_same(payment_env, asked)


@pytest.mark.parametrize("what", ["elicitation", "loose end"])
async def test_unreadable_unresolved_payment_does_not_block_a_new_question(
    payment_env: PaymentEnv, acme: Acme, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    asked = await left_pending(payment_env, acme)
    (record,) = await payment_env.store.list(what)
    await payment_env.store.write(replace(record, sealed=b"a torn page"))
    await ask_the_same(payment_env, asked)
    assert "record.unreadable" in caplog.messages


# A page that is still open after its expiry.


@pytest.mark.parametrize("end", ["paid", "expired"])
async def test_checkout_open_after_expiry_is_polled_until_paid_or_expired(
    end: str,
) -> None:
    provider = Mollie()
    async with selling(mollie("test_abc"), provider) as payment_env:
        asked = await payment_env.begun()
        provider.payments["tr_1"]["isCancelable"] = False
        await payment_env.sweep(minutes=31)
        for _ in range(3):
            await payment_env.sweep(days=1)
            now = await payment_env.now(asked)
            assert (now.status, now.is_open_there) == (Status.EXPIRED, False)
            assert [loose.status for loose in await payment_env.unresolved()] == [
                UnresolvedStatus.WAITING
            ]
        provider.payments["tr_1"]["status"] = end
        await payment_env.sweep(days=1, minutes=5)
        assert await ledger(payment_env) == ([ReceiptStatus.OPEN] if end == "paid" else [])
        calls = len(provider.calls)
        await payment_env.sweep(days=2)
        assert len(provider.calls) == calls
        assert [loose.status for loose in await payment_env.unresolved()] == [UnresolvedStatus.OVER]


# A person who has paid, while another page of the same question is open.


async def bought(call: Call) -> Receipt:
    call.begin()
    with asking(Verbs(call)):
        return await elicit.payment(Money("9.00", "EUR"), "Report", provider="acme")


async def question_of(payment_env: PaymentEnv) -> Elicitation:
    while not (rows := await payment_env.store.list("elicitation")):  # noqa: ASYNC110 - it is at work
        await asyncio.sleep(0)
    found = await payment_env.service.elicitations.get(rows[0].id)
    assert found is not None
    return found


async def two_pages(payment_env: PaymentEnv, acme: Forgetful, asked: Elicitation) -> None:
    """Delay the reply to a checkout creation until the sweeper creates a second checkout."""
    going = asyncio.ensure_future(payment_env.go_on(asked))
    await acme.made.acquire()
    assert (await send(payment_env, acme.event("co-1"))).json() == {"received": "waiting"}
    payment_env.clock.tick(seconds=31)
    sweeping = asyncio.ensure_future(fall_due(payment_env.service))
    await acme.made.acquire()
    for gate in acme.gates:
        gate.set()
    await asyncio.gather(going, sweeping)
    assert [*acme.checkouts] == ["co-1", "co-2"]


async def test_paid_question_is_not_blocked_by_another_pending_checkout(
    tmp_path: Path,
) -> None:
    acme = Forgetful()
    seller = declared(f"{DECLARED}idempotency = false\n", folder=tmp_path)
    async with selling(seller, acme) as payment_env:
        call = call_of(payment_env.service, presenter=Holding())
        first = asyncio.ensure_future(bought(call))
        await two_pages(payment_env, acme, await question_of(payment_env))
        for id in acme.checkouts:
            acme.pay(id, state="pending")
        await payment_env.sweep(minutes=31)
        with pytest.raises(Expired):
            await first
        await call.finish(lambda: '"not yet"')
        await call.delivered()
        assert (await send(payment_env, acme.pay("co-1"), id="msg_2")).json() == {
            "received": "late"
        }
        waiting = [
            one.session
            for one in await payment_env.unresolved()
            if one.status is UnresolvedStatus.WAITING
        ]
        assert waiting == ["co-2"]
        receipt = await bought(call_of(payment_env.service, presenter=Holding()))
        (payment,) = await payment_env.service.kinds.payments.ledger.all()
        assert (receipt.id, payment.session) == (payment.id, "co-1")


# An unresolved payment whose question is gone.

ASK_THERE = "has not said whether it was paid: check co-1 at the provider"


class Slow(Acme):
    """A provider that runs a callback once, before it answers about a checkout."""

    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET" and self.meanwhile is not None:
            in_between, self.meanwhile = self.meanwhile, None
            await in_between()
        return await super().__call__(request)


async def test_same_payment_is_not_asked_for_again_after_a_payment_page_was_lost(
    payment_env: PaymentEnv,
) -> None:
    asked = await payment_env.asked()
    await payment_env.service.kinds.payments.unresolved.list_lost(asked)
    says = "A payment page was opened for the same request before, and the server cannot find it"
    with pytest.raises(Failed) as failed:
        await ask_the_same(payment_env, asked)
    assert str(failed.value).startswith(says)


async def test_ended_question_keeps_its_reason_after_a_different_amount_was_paid(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await begun(payment_env)
    await payment_env.service.elicitations.settle(asked.id, Status.SUPERSEDED)
    ended = await payment_env.now(asked)
    assert (await send(payment_env, acme.pay(amount=400))).json() == {"received": "refused"}
    assert "paid 4.00 EUR, requested 9.00 EUR" in await note_of_open_payment(payment_env)
    now = await payment_env.now(asked)
    assert (now.status, now.why, now.progress) == (Status.SUPERSEDED, ended.why, ended.progress)


async def nobody_is_asked_again(payment_env: PaymentEnv, acme: Acme) -> None:
    calls = len(acme.calls)
    for _ in range(3):
        payment_env.clock.tick(days=20)
        assert await fall_due(payment_env.service) == 0
    assert len(acme.calls) == calls


async def test_unresolved_payment_of_an_erased_question_is_listed_for_the_operator(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await left_pending(payment_env, acme)
    # No process ran for two months. The next process erases old records before its first sweep.
    payment_env.clock.tick(days=62)
    await payment_env.store.erase(before=payment_env.clock())
    assert await payment_env.service.elicitations.get(asked.id) is None
    calls = len(acme.calls)
    assert await fall_due(payment_env.service) == 1
    assert len(acme.calls) == calls
    assert [loose.status for loose in await payment_env.unresolved()] == [
        UnresolvedStatus.UNANSWERED
    ]
    await nobody_is_asked_again(payment_env, acme)
    assert ASK_THERE in await note_of_open_payment(payment_env)


@pytest.mark.parametrize(
    ("state", "line"),
    [
        ("pending", ASK_THERE),
        ("paid", ASK_THERE),
        ("otherwise", "paid 4.00 EUR, requested 9.00 EUR: check co-1 at the provider"),
    ],
)
async def test_unresolved_payment_whose_question_is_erased_during_a_poll_is_listed(
    tmp_path: Path, state: str, line: str
) -> None:
    acme = Slow()
    async with selling(declared(DECLARED, folder=tmp_path), acme) as payment_env:
        asked = await left_pending(payment_env, acme)
        acme.pay(state="paid" if state == "otherwise" else state)
        if state == "otherwise":
            acme.checkouts["co-1"]["amount"] = 400
        # Another process erases old records in the meantime.
        payment_env.clock.tick(days=62)
        acme.meanwhile = lambda: payment_env.store.erase(before=payment_env.clock())
        await fall_due(payment_env.service)
        assert await payment_env.service.elicitations.get(asked.id) is None
        await payment_env.sweep(days=1)
        await nobody_is_asked_again(payment_env, acme)
        assert (await note_of_open_payment(payment_env)).endswith(line)
        assert await ledger(payment_env) == []


class Emptied(MemoryStore):
    """A store that erases an owner's records just before their question is read."""

    owner: str | None = None

    async def read(self, owner: str, kind: str, id: str) -> Record | None:
        if kind == "elicitation" and owner == self.owner:
            await self.erase(owner=owner)
        return await super().read(owner, kind, id)


@pytest.mark.parametrize("when", ["before its provider is asked", "while it does not answer"])
async def test_unresolved_payment_erased_during_a_poll_is_not_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    acme, store = Slow(), Emptied()
    async with selling(declared(DECLARED, folder=tmp_path), acme, store=store) as payment_env:
        asked = await left_pending(payment_env, acme)
        if when == "before its provider is asked":
            store.owner = asked.owner
        else:
            acme.is_down = True
            acme.meanwhile = lambda: store.erase(owner=asked.owner)
        payment_env.clock.tick(hours=2)
        assert await fall_due(payment_env.service) == 1
        assert await payment_env.unresolved() == []
        assert not [text for text in caplog.messages if text.startswith("sweeper.")]
        await nobody_is_asked_again(payment_env, acme)
