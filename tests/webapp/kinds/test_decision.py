"""The inbox of approvers: a question and its inbox item, and crashes between their writes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from flows import elicit
from flows.elicitation.states import Status
from flows.errors import StoreUnavailable
from flows.question import Outcome, asking
from tests.support.chains import audit_entries_of
from tests.support.clock import Clock
from tests.support.service_env import Holding, call_of, process
from webapp.calls.call import Call, Interrupted
from webapp.calls.presenter import PresentedQuestion
from webapp.calls.verbs import Verbs
from webapp.elicitations.waiters import Waiter
from webapp.identity.approvers import OWN_USER, Approver, Deciding
from webapp.identity.identity import Viewer
from webapp.kinds.decision import LISTED_AT_MOST, WITHDRAWN, PendingDecision
from webapp.records.ids import InboxItem
from webapp.records.values import KINDS
from webapp.service import Service
from webapp.settings.identity import IdentitySettings
from webapp.settings.quotas import PolicySettings
from webapp.stores import Record
from webapp.stores.sqlite import MemoryStore
from webapp.sweeper import fall_due

ME = Approver(name="finance", is_local=True)
WHO = IdentitySettings(approvers=(ME,), askers_decide=True)
AUDITED = PolicySettings(audit=True)


class Dying(MemoryStore):
    """A store whose process is killed right before it writes a row of the kind `at`."""

    def __init__(self, *, at: str, status: str | None = None) -> None:
        super().__init__()
        self._at = at
        self._status = status

    async def write(self, *records: Record) -> tuple[Record, ...]:
        if any(self._is_it(record) for record in records):
            raise StoreUnavailable("killed")
        return await super().write(*records)

    def _is_it(self, record: Record) -> bool:
        return record.kind == self._at and self._status in (None, record.status)


class AtOnce(Holding):
    """A presenter that ends the call instead of waiting."""

    async def wait(self, call: Call, shown: PresentedQuestion, waiter: Waiter) -> None:
        call.interrupt(shown.elicitation.id)


async def ask(service: Service, *, arguments: object = None) -> Outcome[bool] | None:
    """Ask, and return the outcome, or None if the question stays open."""
    call = call_of(service, presenter=AtOnce(), arguments=arguments)
    call.begin()
    with service.running_tools.at_work(call):
        try:
            with asking(Verbs(call)):
                return await elicit.confirm("Pay it?", approver="finance").outcome()
        except Interrupted:
            return None
        finally:
            await call.finish(lambda: "{}")


def approver(service: Service) -> Deciding:
    viewer = Viewer(owner=service.identity.local_owner, label="you, on this computer")
    person = service.kinds.decisions.approvers.deciding(viewer)
    assert person is not None
    return person


async def waiting(service: Service) -> list[PendingDecision]:
    return list((await service.kinds.decisions.inbox("finance"))[0])


async def decided(service: Service) -> list[PendingDecision]:
    return list((await service.kinds.decisions.inbox("finance", is_decided=True))[0])


async def items(service: Service) -> list[str]:
    rows = await service.elicitations.store.list(KINDS[InboxItem])
    return [row.status for row in rows]


@asynccontextmanager
async def another(store: MemoryStore, clock: Clock) -> AsyncIterator[Service]:
    """Start the process that runs after the crash."""
    sibling = store.sibling()
    async with process(sibling, clock, who=WHO) as service:
        yield service


async def test_crash_before_question_is_written_leaves_unreachable_inbox_item(clock: Clock) -> None:
    store = Dying(at="elicitation")
    async with process(store, clock, who=WHO) as service:
        with pytest.raises(StoreUnavailable):
            await ask(service)
    async with another(store, clock) as service:
        assert await items(service) == ["waiting"]
        assert await waiting(service) == []
        assert await ask(service) is None
        assert len(await waiting(service)) == 1, "the repeated call creates a reachable inbox item"
        clock.tick(days=2)
        while await fall_due(service):
            clock.tick(minutes=1)
        assert await items(service) == ["decided", "decided"]
        assert [one.asked.status for one in await decided(service)] == [Status.EXPIRED]


async def test_crash_before_inbox_item_is_written_leaves_no_rows(clock: Clock) -> None:
    store = Dying(at=KINDS[InboxItem])
    async with process(store, clock, who=WHO) as service:
        with pytest.raises(StoreUnavailable):
            await ask(service)
    async with another(store, clock) as service:
        assert not await service.elicitations.store.list("elicitation")
        assert await waiting(service) == []


async def test_crash_before_answer_is_written_leaves_request_waiting(clock: Clock) -> None:
    store = Dying(at="elicitation", status="accepted")
    async with process(store, clock, who=WHO) as service:
        await ask(service)
        (one,) = await waiting(service)
        with pytest.raises(StoreUnavailable):
            await service.kinds.decisions.decide(one, approver(service), accepts=True)
    async with another(store, clock) as service:
        (one,) = await waiting(service)
        await service.kinds.decisions.decide(one, approver(service), accepts=True)
        outcome = await ask(service)
        assert outcome is not None
        assert outcome.accepted


async def test_crash_after_answer_is_written_loses_only_mark_of_inbox_item(clock: Clock) -> None:
    store = Dying(at=KINDS[InboxItem], status="decided")
    async with process(store, clock, who=WHO) as service:
        await ask(service)
        (one,) = await waiting(service)
        with pytest.raises(StoreUnavailable):
            await service.kinds.decisions.decide(one, approver(service), accepts=False, reason="no")
    async with another(store, clock) as service:
        assert await waiting(service) == []
        outcome = await ask(service)
        assert outcome is not None
        assert outcome.status is Status.DECLINED
        clock.tick(days=2)
        await fall_due(service)
        assert await items(service) == ["decided"]
        (one,) = await decided(service)
        assert one.asked.decided_by is not None


async def test_inbox_is_paged_with_latest_first(store, clock: Clock) -> None:
    async with process(store, clock, who=WHO) as service:
        for number in range(LISTED_AT_MOST + 5):
            await ask(service, arguments=number)
            clock.tick(minutes=1)
        decisions = service.kinds.decisions
        first, after = await decisions.inbox("finance")
        second, end = await decisions.inbox("finance", after=after)
        assert (len(first), len(second), end) == (LISTED_AT_MOST, 5, None)
        times = [one.asked.created_at for one in (*first, *second)]
        assert times == sorted(times, reverse=True)
        me = approver(service)
        for one in first[:3]:
            await decisions.decide(one, me, accepts=True)
        assert [one.id for one in await decided(service)] == [one.id for one in first[:3]]
        assert len(await waiting(service)) == LISTED_AT_MOST
        assert (await decisions.inbox("legal"))[0] == []


async def test_decisions_are_listed_for_thirty_days(store, clock: Clock) -> None:
    async with process(store, clock, who=WHO) as service:
        await ask(service)
        (one,) = await waiting(service)
        await service.kinds.decisions.decide(one, approver(service), accepts=True)
        clock.tick(days=29)
        assert len(await decided(service)) == 1
        clock.tick(days=3)
        assert await decided(service) == []
        while await fall_due(service):
            pass
        assert await items(service) == []


async def test_erased_asker_disappears_from_inbox(store, clock: Clock) -> None:
    async with process(store, clock, who=WHO) as service:
        await ask(service)
        (one,) = await waiting(service)
        while await service.elicitations.store.erase(owner=one.asked.owner):
            pass
        service.elicitations.owners.forget(one.asked.owner)
        assert await waiting(service) == []
        assert await service.kinds.decisions.read("finance", one.id) is None
        assert await items(service) == ["waiting"]


async def test_audit_of_asker_names_approver(store, clock: Clock) -> None:
    async with process(store, clock, who=WHO, policies=AUDITED) as service:
        await ask(service)
        (one,) = await waiting(service)
        await service.kinds.decisions.decide(one, approver(service), accepts=True)
        entries = await audit_entries_of(service, one.asked.owner)
        reported = {entry.what: (entry.by, entry.proof) for entry in entries}
        assert reported["asked"] == ("service", None)
        assert reported["accepted"] == (OWN_USER, "ByApprover")


async def test_withdrawn_request_is_not_listed_as_waiting(store, clock: Clock) -> None:
    async with process(store, clock, who=WHO) as service:
        for number in range(3):
            await ask(service, arguments=number)  # all three at the same time
        first, second, third = await waiting(service)
        await service.kinds.decisions.give_up(second.asked)
        assert [one.id for one in await waiting(service)] == [first.id, third.id]
        assert sorted(await items(service)) == ["decided", "waiting", "waiting"]
        (one,) = await decided(service)
        assert (one.id, one.asked.why) == (second.id, WITHDRAWN)
        await service.kinds.decisions.decide(first, approver(service), accepts=True)
        ended = await service.kinds.decisions.give_up(first.asked)
        assert ended.status is Status.ACCEPTED
