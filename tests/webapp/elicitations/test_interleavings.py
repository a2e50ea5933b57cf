"""Interleavings of calls, completions, a timeout and a cancellation, up to a bound.

The programs are the service's own code. The test decides only which program uses the store next.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from contextvars import copy_context
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import pytest

from flows import elicit
from flows.elicitation.states import (
    LATE,
    LEASE,
    TRANSITIONS,
    Completion,
    Elicitation,
    Lease,
    Status,
)
from flows.question import asking
from tests.support.chains import audit_entries_of, faults_of
from tests.support.clock import Clock
from tests.support.records import held_in
from tests.support.schedules import PROGRAM, Schedule, TurnStore, explore
from tests.support.service_env import Holding, call_of, process
from webapp.calls.call import Call, Interrupted
from webapp.calls.verbs import Verbs
from webapp.elicitations.watcher import listen
from webapp.records.chain import AUDIT
from webapp.service import Service
from webapp.settings.quotas import PolicySettings
from webapp.sweeper import fall_due

T = TypeVar("T")
SHORT = timedelta(seconds=5)
ALIAS = "order-7"


@dataclass(frozen=True)
class Scenario:
    """The programs that run at the same time, and the steps that run before them."""

    programs: tuple[str, ...]
    prepared: tuple[str, ...] = ("visit",)
    processes: int = 1
    is_slow: bool = False
    is_named: bool = False
    is_audited: bool = False
    preemptions: int = 2
    at_most: int = 300


class Table:
    """The state of one schedule: up to two processes, one question, and each program's results."""

    def __init__(self, scenario: Scenario, schedule: Schedule, clock: Clock) -> None:
        self.scenario = scenario
        self.schedule = schedule
        self.clock = clock
        self.store = TurnStore(schedule, clock, is_slow=scenario.is_slow)
        self.violations: list[str] = []
        self.services: list[Service] = []
        self.presenters: dict[str, Holding] = {}
        self.calls: dict[str, Call] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.acting: dict[str, str] = {}
        self.used: Counter[str] = Counter()
        self.answers: list[Completion] = []
        self.run_id: str | None = None

    def is_quiet(self) -> None:
        """Report programs that sleep although they should continue. No program can run now."""
        names = {
            self.calls[name].request_id: name
            for name in self.presenters
            if not self.tasks[name].done()
        }
        for record in held_in(self.store):
            if record.kind != "elicitation":
                continue
            current = at_once(self.services[0].elicitations.rows.open(record, Elicitation))
            for request_id, name in names.items():
                is_held = self.presenters[name].holds == current.id
                if is_held and (current.status.is_final or current.waiter != request_id):
                    self.violations.append(f"{name} sleeps although its wait is over")
            lease = current.take
            is_taken = lease is not None and self.clock() < lease.until
            others = [name for name in names.values() if self.presenters[name].holds is None]
            if (
                is_taken
                and current.delivered_at is None
                and others
                and _request_of(lease) not in names
            ):
                self.violations.append(f"{others} wait for a request that has ended")

    async def play(self) -> None:
        async with AsyncExitStack() as stack:
            for number in range(self.scenario.processes):
                store = self.store if number == 0 else self.store.process()
                policies = PolicySettings(audit=self.scenario.is_audited)
                begun = process(store, self.clock, policies=policies)
                self.services.append(await stack.enter_async_context(begun))
            listeners = [
                asyncio.create_task(listen(service.elicitations)) for service in self.services
            ]
            await asyncio.sleep(0)
            for step in self.scenario.prepared:
                await self.prepare(step)
            self.schedule.programs = frozenset(self.scenario.programs)
            for name in self.scenario.programs:
                context = copy_context()
                context.run(PROGRAM.set, name)
                program = self.program(name)
                self.tasks[name] = asyncio.create_task(program, name=name, context=context)
            await asyncio.wait(self.tasks.values())
            for listener in listeners:
                listener.cancel()
            await asyncio.wait(listeners)
            for name, task in self.tasks.items():
                if not task.cancelled() and task.exception() is not None:
                    self.violations.append(f"{name} broke: {task.exception()!r}")
            for service in self.services:
                if len(service.elicitations.waiters):
                    self.violations.append("a waiter was left behind")
            await self.audit()

    async def prepare(self, step: str) -> None:
        """Run a preparing step.

        `visit`: a call asks, and its client disconnects. `expire`: the question's time passes.
        `read`: the call `again` has only read its run.
        """
        service = self.services[0]
        if step == "visit":
            task = asyncio.create_task(self.request("earlier"))
            for _ in range(30):
                await asyncio.sleep(0)
            assert self.presenters["earlier"].holds is not None
            self.run_id = self.calls["earlier"].run.value.id
            task.cancel()
            await asyncio.wait({task})
            del self.presenters["earlier"]
        elif step == "read":
            await self.call("again", service).current_run()
        else:
            self.clock.tick(seconds=SHORT.total_seconds())
            await fall_due(service)

    def program(self, name: str) -> Coroutine[Any, Any, None]:
        kind, _, process_number = name.partition("@")
        service = self.services[int(process_number or 0)]
        programs: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "call": lambda: self.request(name, service),
            "again": lambda: self.request(name, service),
            "request": lambda: self.request(name, service, run_id=self.run_id),
            "complete": lambda: self.complete(service),
            "twice": lambda: self.complete(service),
            "decline": lambda: self.decline(service),
            "timeout": self.timeout,
            "lease": self.lease,
            "sweep": lambda: self.sweep(service),
            "cancel": self.cancel,
            "abort": self.abort,
            "glance": lambda: self.glance(service),
        }
        return programs[kind]()

    def call(self, name: str, service: Service | None = None, *, run_id: str | None = None) -> Call:
        presenter = self.presenters[name] = Holding()
        call = self.calls[name] = call_of(
            service or self.services[0], presenter=presenter, run_id=run_id
        )
        return call

    async def request(
        self, name: str, service: Service | None = None, *, run_id: str | None = None
    ) -> None:
        call = self.calls.get(name) or self.call(name, service, run_id=run_id)
        call.begin()
        question = elicit.url(
            "Please go there.",
            "https://example.com/",
            elicitation_id=ALIAS if self.scenario.is_named else None,
            timeout=SHORT,
        )
        try:
            with asking(Verbs(call)):
                outcome = await question.outcome()
            if outcome.accepted:
                self.begin_to_act(name, call)
                await self.schedule.turn()
                self.end_to_act(name)
        except Interrupted:
            await call.finish()
        except asyncio.CancelledError:
            await call.finish()
            raise
        else:
            await call.finish(lambda: f'"{outcome.action} for {name}"')
            await self.schedule.turn()
            await call.delivered()
        finally:
            self.acting.pop(name, None)

    def begin_to_act(self, name: str, call: Call) -> None:
        (id,) = call.used._is_used
        if id in self.acting.values() and "lease" not in self.tasks:
            self.violations.append(f"{name} uses an outcome that another request uses")
        self.acting[name] = id
        self.used[id] += 1

    def end_to_act(self, name: str) -> None:
        for record in held_in(self.store):
            if record.id == self.acting[name]:
                rows = self.services[0].elicitations.rows
                current = at_once(rows.open(record, Elicitation))
                if current.delivered_at is not None and "lease" not in self.tasks:
                    self.violations.append(f"another's result used up what {name} acts on")

    async def complete(self, service: Service) -> None:
        await self.schedule.turn()
        ids = [each.id for each in held_in(self.store) if each.kind == "elicitation"]
        id = ids[0] if ids and not self.scenario.is_named else ALIAS
        self.answers.append(await service.completing.complete(id, {"n": 1}))

    async def decline(self, service: Service) -> None:
        for each in held_in(self.store):
            is_one = each.kind == "elicitation"
            current = await service.elicitations.get(each.id) if is_one else None
            if current is not None:
                await service.elicitations.end(current, Status.DECLINED)

    async def timeout(self) -> None:
        await self.schedule.turn()
        self.clock.tick(seconds=SHORT.total_seconds())

    async def lease(self) -> None:
        await self.schedule.turn()
        self.clock.tick(seconds=LEASE.total_seconds())

    async def sweep(self, service: Service) -> None:
        await fall_due(service)

    async def cancel(self) -> None:
        """Cancel a call as its client would, unless the body has claimed an answer."""
        await self.schedule.turn()
        name = next(name for name in self.tasks if name.startswith(("call", "request")))
        if not self.calls[name].used.has_claimed:
            self.tasks[name].cancel()

    async def abort(self) -> None:
        """Cancel the program `complete`, for example between its write and the reply."""
        await self.schedule.turn()
        self.tasks["complete"].cancel()

    async def glance(self, service: Service) -> None:
        """Wake every waiting request, so that it reads the store as if its client had answered."""
        for _ in range(3):
            await self.schedule.turn()
            service.elicitations.waiters.wake_all()

    async def audit(self) -> None:
        """Check the records in the order in which they were written."""
        self.schedule.programs = frozenset()
        before: dict[str, Elicitation] = {}
        delivered: Counter[str] = Counter()
        for at, record in self.store.history:
            if record.kind != "elicitation":
                continue
            now = await self.services[0].elicitations.rows.open(record, Elicitation)
            old = before.get(now.id)
            if old is not None:
                self.check_step(old, now, has_ended=old.take is not None and at >= old.take.until)
                is_delivered = old.delivered_at is None and now.delivered_at is not None
                delivered[now.id] += is_delivered and now.status is Status.ACCEPTED
            before[now.id] = now
        if any(count > 1 for count in delivered.values()):
            self.violations.append("delivered twice")
        if any(count > 1 for count in self.used.values()) and "lease" not in self.tasks:
            self.violations.append("two requests used one outcome")
        if any(before[id].delivered_at is None for id in self.used) and "lease" not in self.tasks:
            self.violations.append("used, and kept for the next call all the same")
        self.check_answers(before)
        if self.scenario.is_audited:
            await self.check_chain()

    def check_step(self, old: Elicitation, now: Elicitation, *, has_ended: bool) -> None:
        allowed = TRANSITIONS[old.status] | LATE.get(old.status, frozenset())
        if now.status is not old.status and now.status not in allowed:
            self.violations.append(f"{old.status} became {now.status}")
        is_other = (
            _request_of(now.take) not in (None, _request_of(old.take)) and old.take is not None
        )
        if is_other and not has_ended:
            self.violations.append("claimed from the request that has claimed it")

    async def check_chain(self) -> None:
        """Check that no change is recorded twice, and that each owner's chain is intact."""
        self.violations += await faults_of(self.services[-1])
        owners = {each.owner for each in held_in(self.store) if each.kind == AUDIT}
        for owner in owners:
            stands = dict[str, str]()  # a delivered "declined" may become a late acceptance
            for entry in await audit_entries_of(self.services[0], owner):
                if stands.get(entry.about) == entry.what:
                    self.violations.append(f"{entry.what} was reported twice")
                stands[entry.about] = entry.what
        if not owners:
            self.violations.append("nothing was reported")

    def check_answers(self, last: dict[str, Elicitation]) -> None:
        yes = [self.answers.count(answer) for answer in (Completion.ACCEPTED, Completion.LATE)]
        accepted = [e for e in last.values() if e.status is Status.ACCEPTED]
        is_cut = "abort" in self.tasks
        if sum(yes) != len(accepted) and not is_cut:
            self.violations.append(f"{self.answers} for {len(accepted)} accepted")
        if yes[1] != sum(e.is_late for e in accepted) and not is_cut:
            self.violations.append(f"{self.answers} although {accepted}")


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that awaits nothing."""
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("it awaits something")


def _request_of(lease: Lease | None) -> str | None:
    return None if lease is None else lease.leg


SCENARIOS = {
    "two calls start at once": Scenario(("call", "again", "complete"), prepared=()),
    "two calls, a completion and a cancel": Scenario(("call", "again", "cancel", "complete")),
    "two requests, a completion and a timeout": Scenario(
        ("call", "request", "complete", "timeout")
    ),
    "two completions, a timeout and the sweeper": Scenario(
        ("call", "complete", "sweep", "timeout", "twice")
    ),
    "a decline during a completion": Scenario(("call", "complete", "decline", "request")),
    "a lease that runs out": Scenario(("again", "call", "complete", "lease")),
    "two processes": Scenario(("again@1", "call", "complete@1", "twice"), processes=2),
    "a late completion while it is asked again": Scenario(
        ("again", "call", "complete"), prepared=("visit", "expire")
    ),
    "a late completion between two that ask again": Scenario(
        ("again", "call", "complete"), prepared=("visit", "expire", "read"), preemptions=1
    ),
    "a decline, and a late completion between two that ask again": Scenario(
        ("again", "call", "complete", "decline"), prepared=("visit", "read"), preemptions=1
    ),
    "a late completion between two requests": Scenario(
        ("call", "complete", "request"), prepared=("visit", "expire"), preemptions=1
    ),
}

NAMED = Scenario(("call", "again", "complete"), prepared=(), is_named=True, at_most=60)
AUDITED = Scenario(
    ("again@1", "call", "complete@1", "twice"), processes=2, is_audited=True, at_most=100
)
SEEN_EARLY = Scenario(("call", "complete", "glance"), is_slow=True)
LEAVING = Scenario(("again", "call", "cancel", "complete"), is_slow=True)
ABORTED = Scenario(("call", "complete", "abort"), is_slow=True, at_most=120)


@cache
def explored(scenario: Scenario) -> tuple[int, list[str]]:
    return explore(
        lambda schedule, clock: Table(scenario, schedule, clock),
        preemptions=scenario.preemptions,
        at_most=scenario.at_most,
    )


@pytest.mark.parametrize("name", SCENARIOS)
def test_one_run_gets_the_outcome_in_every_order_of_events(name: str) -> None:
    _, wrong = explored(SCENARIOS[name])
    assert not wrong, "\n".join(wrong[:5])


def test_two_identical_calls_with_custom_id_join() -> None:
    _, wrong = explored(NAMED)
    assert not wrong, "\n".join(wrong[:5])


def test_every_order_reports_each_change_once_across_two_processes() -> None:
    _, wrong = explored(AUDITED)
    assert not wrong, "\n".join(wrong[:5])


def test_outcome_of_call_cancelled_while_claiming_goes_to_the_next_call() -> None:
    _, wrong = explored(LEAVING)
    assert not wrong, "\n".join(wrong[:5])


def test_outcome_used_before_its_write_returned_is_not_given_to_next_call() -> None:
    _, wrong = explored(SEEN_EARLY)
    assert not wrong, "\n".join(wrong[:5])


def test_completion_cancelled_after_write_wakes_waiter() -> None:
    _, wrong = explored(ABORTED)
    assert not wrong, "\n".join(wrong[:5])


def test_thousands_of_orders_are_explored(capsys: pytest.CaptureFixture[str]) -> None:
    count = sum(explored(scenario)[0] for scenario in SCENARIOS.values())
    with capsys.disabled():
        print(f"\ninterleavings explored: {count}", end=" ")  # noqa: T201
    assert count >= 2000
