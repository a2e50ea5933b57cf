"""Notifications: stored first, sent at least once, only about open questions, at a limited rate."""

import asyncio
import logging
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from flows.elicitation.states import Status
from flows.elicitation.traits import TrustedCode
from flows.payments.money import Money
from tests.support.clock import Clock
from tests.support.notify_env import (
    Deliveries,
    asked,
    messages_are_noted,
    notifying,
    pass_time,
    round_of,
    rows_of,
    web_hook,
)
from webapp.elicitations.complete import complete_elicitation
from webapp.events.sender import JITTER, SCHEDULE
from webapp.notifications.delivery import NotifyTable, deliver
from webapp.notifications.sender import BETWEEN_MESSAGES, CLAIMED, LATER, MESSAGES_AT_ONCE
from webapp.settings.brand import Brand
from webapp.stores.sqlite import MemoryStore
from webapp.sweeper import fall_due
from webapp.telemetry.metrics import Metrics
from webapp.telemetry.work import Telemetry

MAIL, CHAT, BOSS = "mailto://mail.example", "chat://chat.example", "mailto://boss.example"
FINANCE = NotifyTable(name="finance", to=(MAIL,))
TWICE = NotifyTable(
    name="finance",
    to=(MAIL, CHAT),
    remind_after=timedelta(hours=4),
    remind_at_most=2,
    escalate_after=timedelta(hours=6),
    escalate_to=(BOSS,),
)
DAY = timedelta(days=1)
WEEK = timedelta(days=7)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def sent() -> Deliveries:
    return Deliveries()


async def test_each_address_is_notified_reminded_and_the_question_is_escalated_in_time(
    store: MemoryStore, clock: Clock, sent: Deliveries
) -> None:
    # finding: XQ4
    async with notifying(store, clock, sent, TWICE) as service:
        await asked(service, timeout=WEEK)
        assert not sent.sent, "the tool's request sends no notification itself"
        await round_of(service)
        assert len(sent.titles(MAIL)) == len(sent.titles(CHAT)) == 1
        await pass_time(service, clock, hours=3, minutes=59)
        assert (len(sent.titles(MAIL)), sent.titles(BOSS)) == (1, [])
        await pass_time(service, clock, minutes=1)
        await pass_time(service, clock, hours=2)
        await pass_time(service, clock, hours=2)
        await pass_time(service, clock, days=3)
        first, *reminders = sent.titles(CHAT)
        assert first == "A request waits for your approval at s"
        assert (
            reminders
            == [
                "Reminder: a request waits for your approval at s",
            ]
            * 2
        )
        assert sent.titles(MAIL) == sent.titles(CHAT)
        assert sent.titles(BOSS) == ["Nobody has answered: a request still waits for approval at s"]
        assert {row.status for row in await rows_of(service)} == {"ended"}


@pytest.mark.parametrize("ending", ["accepted", "cancelled", "expired", "erased"])
async def test_nothing_is_sent_about_a_question_that_has_ended(
    store: MemoryStore, clock: Clock, sent: Deliveries, ending: str
) -> None:
    async with notifying(store, clock, sent, TWICE) as service:
        question = await asked(service, timeout=DAY, kind="url")
        if ending == "accepted":
            await complete_elicitation(service.elicitations, question.id, {}, TrustedCode())
        elif ending == "cancelled":
            await service.elicitations.settle(question.id, Status.CANCELLED)
        elif ending == "erased":
            await service.elicitations.store.erase(owner=question.owner)
        else:
            clock.tick(days=1)
        await round_of(service)
        await pass_time(service, clock, days=2)
        assert sent.sent == []
        assert {row.status for row in await rows_of(service)} in ({"ended"}, set())


async def test_question_that_ends_while_its_message_is_queued_is_not_announced(
    store: MemoryStore, clock: Clock, sent: Deliveries
) -> None:
    async with notifying(store, clock, sent, FINANCE) as service:
        question = await asked(service, timeout=DAY)
        await fall_due(service)
        await service.elicitations.settle(question.id, Status.CANCELLED)
        await service.notifier.send_all()
        assert sent.sent == []


async def test_due_messages_are_sent_after_a_restart_and_not_twice(
    store: MemoryStore, clock: Clock, sent: Deliveries
) -> None:
    async with notifying(store, clock, sent, TWICE) as service:
        await asked(service, timeout=WEEK)
    async with notifying(store.sibling(), clock, sent, TWICE) as service:
        await round_of(service)
        assert len(sent.sent) == 2
    async with notifying(store.sibling(), clock, sent, TWICE) as service:
        await pass_time(service, clock, minutes=5)
        assert len(sent.sent) == 2
        await pass_time(service, clock, hours=4)
        assert len(sent.sent) == 4


async def test_two_processes_send_each_message_once(
    store: MemoryStore, clock: Clock, sent: Deliveries
) -> None:
    async with (
        notifying(store, clock, sent, TWICE) as here,
        notifying(store.sibling(), clock, sent, TWICE) as there,
    ):
        await asked(here, timeout=WEEK)
        rows = await rows_of(here)
        # Both processes have read the rows before either of them writes.
        for row in rows:
            await here.notifier.fall_due(row)
            await there.notifier.fall_due(row)
        await asyncio.gather(here.notifier.send_all(), there.notifier.send_all())
        assert sorted(address for address, _ in sent.sent) == sorted((MAIL, CHAT, BOSS))


async def test_message_is_sent_again_after_the_claim_of_a_dead_process_expires(
    store: MemoryStore, clock: Clock, sent: Deliveries
) -> None:
    class Killed(BaseException):
        pass

    async def dies(address: str, message: object) -> str | None:
        raise Killed

    async with notifying(store, clock, dies, FINANCE) as service:
        await asked(service, timeout=DAY)
        await fall_due(service)
        with pytest.raises(Killed):
            await service.notifier.send_all()
    async with notifying(store.sibling(), clock, sent, FINANCE) as service:
        await pass_time(service, clock, seconds=CLAIMED.total_seconds() - 1)
        assert sent.sent == []
        await pass_time(service, clock, seconds=1)
        assert len(sent.sent) == 1


async def test_unreachable_address_is_retried_with_backoff_and_delays_no_other_address(
    store: MemoryStore, clock: Clock, sent: Deliveries, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics()
    sent.faults[MAIL] = ["the connection was refused"] * 3
    caplog.set_level(logging.INFO, "webapp")
    async with notifying(
        store, clock, sent, TWICE, telemetry=Telemetry(metrics=metrics)
    ) as service:
        await asked(service, timeout=WEEK)
        await round_of(service)
        assert (len(sent.titles(MAIL)), len(sent.titles(CHAT))) == (0, 1)
        for pause in SCHEDULE[:3]:
            assert sent.titles(MAIL) == []
            await pass_time(service, clock, seconds=pause.total_seconds() * (1 + JITTER))
        assert sent.titles(MAIL) == ["A request waits for your approval at s"]
    events = [record.getMessage() for record in caplog.records if "notification" in record.msg]
    assert events.count("notification.not_sent") == 3
    page = metrics.page({}).decode()
    assert 'elicit_notifications_total{result="failed",table="finance"} 3.0' in page
    assert 'elicit_notifications_total{result="sent",table="finance"} 2.0' in page
    for text in (page, caplog.text, *(str(vars(record)) for record in caplog.records)):
        assert "mail.example" not in text


async def test_message_is_given_up_after_three_days_and_the_reminder_still_goes_out(
    store: MemoryStore, clock: Clock, sent: Deliveries
) -> None:
    sent.faults[MAIL] = ["HTTP 500"] * (len(SCHEDULE) + 1)
    table = NotifyTable(name="finance", to=(MAIL,), remind_after=timedelta(hours=1))
    async with notifying(store, clock, sent, table) as service:
        await asked(service, timeout=timedelta(days=30))
        await round_of(service)
        for pause in SCHEDULE:
            await pass_time(service, clock, seconds=pause.total_seconds() * (1 + JITTER))
        (row,) = await rows_of(service)
        assert (row.messages, row.tries, row.sent_at, row.why) == (1, 0, None, "HTTP 500")
        await pass_time(service, clock, hours=1)
        assert len(sent.titles(MAIL)) == 1


async def test_hundreds_of_questions_do_not_become_hundreds_of_messages_at_once(
    store: MemoryStore, clock: Clock, sent: Deliveries
) -> None:
    async with notifying(store, clock, sent, FINANCE) as service:
        asks = [await asked(service, join=str(number), timeout=WEEK) for number in range(60)]
        await round_of(service)
        assert len(sent.sent) == MESSAGES_AT_ONCE
        for _ in range(10):
            clock.tick(seconds=BETWEEN_MESSAGES.total_seconds())
            await round_of(service)
        assert MESSAGES_AT_ONCE < len(sent.sent) <= MESSAGES_AT_ONCE + 10
        for question in asks:
            await service.elicitations.settle(question.id, Status.CANCELLED)
        count = len(sent.sent)
        await pass_time(service, clock, days=1)
        assert len(sent.sent) == count


async def test_person_is_notified_of_their_own_question_unless_they_have_its_page_open(
    store: MemoryStore, clock: Clock, sent: Deliveries
) -> None:
    ann = NotifyTable(name="ann", to=(MAIL,), users=frozenset({"ann"}), after=timedelta(minutes=1))
    async with notifying(store, clock, sent, ann, FINANCE) as service:
        about: dict[str, Any] = {"approver": None, "kind": "url", "timeout": DAY}
        left = await asked(service, user="ann", join="left alone", **about)
        opened = await asked(service, user="ann", join="opened", **about)
        await asked(service, user="bob", join="of another person", **about)
        await asked(service, user="ann", join="for finance", approver="sales")
        await round_of(service)
        assert sent.sent == []
        await service.elicitations.open_attempt(opened.id, browser="b" * 64)
        await pass_time(service, clock, seconds=LATER.total_seconds())
        ((address, message),) = sent.sent
        assert (address, message.title) == (MAIL, "Something waits for you at s")
        assert "http://127.0.0.1:8765/activity and sign in" in message.body
        assert left.id not in message.body


@pytest.mark.parametrize("with_question", [False, True])
async def test_question_is_in_the_message_only_if_the_operator_allows_it(
    store: MemoryStore, clock: Clock, sent: Deliveries, *, with_question: bool
) -> None:
    table = NotifyTable(name="finance", to=(MAIL,), with_question=with_question)
    async with notifying(store, clock, sent, table, brand=Brand(name="Acme")) as service:
        await asked(service, terms={"arguments": {"iban": "DE00"}}, timeout=DAY)
        await round_of(service)
        ((_, message),) = sent.sent
        assert ("Refund 900 EUR to Bob?" in message.body) is with_question
        assert message.title == "A request waits for your approval at Acme"
        for word in ("DE00", "iban", "/e/", "alice"):
            assert word not in message.body
        assert message.body.endswith("To answer, open http://127.0.0.1:8765/inbox and sign in.")
        assert "open until 2026-03-02 12:00 UTC." in message.body


async def test_message_is_in_its_tables_language_or_the_first_page_language(
    clock: Clock, sent: Deliveries
) -> None:
    for language, languages, german in (
        ("de", (), True),
        (None, ("de", "en"), True),
        ("en", ("de",), False),
    ):
        table, brand = replace(FINANCE, language=language), Brand(languages=languages)
        async with notifying(MemoryStore(), clock, sent, table, brand=brand) as service:
            await asked(service, timeout=DAY)
            await round_of(service)
        _, message = sent.sent.pop()
        title = "Eine Anfrage wartet auf Ihre Zustimmung bei s"
        assert (message.title == title) == german
        assert ("Wer entscheidet: finance" in message.body) == german
        assert message.body.endswith("/inbox und melden Sie sich an.") == german


async def test_amount_of_a_payment_is_never_in_the_message(
    store: MemoryStore, clock: Clock, sent: Deliveries
) -> None:
    table = NotifyTable(name="ann", to=(MAIL,), users=frozenset({"ann"}), with_question=True)
    async with notifying(store, clock, sent, table) as service:
        price = Money("9.00", "EUR")
        terms = {
            "seller": "stripe",
            "amount": price.minor_units,
            "currency": "EUR",
            "what": "a report",
            "is_live": False,
        }
        await asked(
            service,
            approver=None,
            user="ann",
            kind="payment",
            message=f"Pay {price} for a report",
            terms=terms,
        )
        await round_of(service)
        ((_, message),) = sent.sent
        assert "Question: Pay for a report" in message.body
        assert "9" not in message.body.replace("127.0.0.1:8765", "").partition("Asked at")[0]


async def test_question_without_a_matching_table_stores_no_notification(
    store: MemoryStore, clock: Clock, sent: Deliveries
) -> None:
    async with notifying(store, clock, sent, FINANCE) as service:
        await asked(service, approver="sales")
        await asked(service, approver=None, kind="url", join="another")
        assert await rows_of(service) == []


async def test_rows_of_a_removed_table_wait_for_other_processes_and_end_with_the_question(
    store: MemoryStore, clock: Clock, sent: Deliveries
) -> None:
    async with notifying(store, clock, sent, FINANCE) as service:
        question = await asked(service, timeout=DAY)
    async with notifying(store.sibling(), clock, sent) as service:
        await round_of(service)
        (row,) = await rows_of(service)
        assert (row.status, row.next_at) == ("waiting", clock() + LATER)
    async with notifying(store.sibling(), clock, sent, FINANCE) as service:
        await pass_time(service, clock, seconds=LATER.total_seconds())
        assert len(sent.sent) == 1
        await service.elicitations.settle(question.id, Status.CANCELLED)
    async with notifying(store.sibling(), clock, sent) as service:
        await pass_time(service, clock, days=1)
        (row,) = await rows_of(service)
        assert row.status == "ended"


async def test_running_notifier_sends_queued_messages_without_blocking_the_sweeper(
    store: MemoryStore, clock: Clock
) -> None:
    is_asked, goes_on = asyncio.Event(), asyncio.Event()

    async def slow(address: str, message: object) -> str | None:
        is_asked.set()
        await goes_on.wait()
        return None

    async with notifying(store, clock, slow, FINANCE) as service, asyncio.TaskGroup() as group:
        running = group.create_task(service.notifier.run())
        await asked(service, timeout=DAY)
        await fall_due(service)  # returns although nothing is delivered yet
        await is_asked.wait()
        running.cancel()
        goes_on.set()
        await messages_are_noted(service, 1)


async def test_web_hook_that_fails_is_reported_by_its_status_and_retried() -> None:
    store, clock = MemoryStore(), Clock()
    async with web_hook() as hook:
        hook.statuses = [503]
        table = NotifyTable(name="finance", to=(hook.address,))
        async with notifying(store, clock, deliver, table) as service:
            await asked(service, timeout=DAY)
            await round_of(service)
            (row,) = await rows_of(service)
            assert (row.messages, row.tries, row.why) == (0, 1, "HTTP 503")
            await pass_time(service, clock, seconds=6)
            (row,) = await rows_of(service)
            assert (row.messages, row.status, len(hook.received)) == (1, "ended", 2)
