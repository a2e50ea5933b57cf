"""After any sequence of events, the service has the state that a simple model predicts.

The model knows statuses, claims with their ends, and deliveries. A crash loses everything except
the store.
"""

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from flows.elicitation import states
from flows.elicitation.states import LEASE, RECORD_RETENTION, Completion, Elicitation, Status
from flows.errors import ElicitError, NotPossible, TooManyAttempts
from tests.support.clock import NOON, Clock
from tests.support.hand_loop import HandLoop
from tests.support.service_env import HOLD, asked, process
from webapp.deadline import UNSURE
from webapp.stores import Conflict
from webapp.stores.sqlite import MemoryStore
from webapp.sweeper import fall_due

if TYPE_CHECKING:
    from webapp.service import Service

LATE_UNTIL = timedelta(minutes=10)
OPEN = {"pending", "opened"}
requests = st.sampled_from(["run-1 leg-1", "run-1 leg-2", "run-2 leg-3"])
joins = st.sampled_from(["one question", "another"])
noes = st.sampled_from([Status.DECLINED, Status.CANCELLED, Status.FAILED])


@dataclass
class Modelled:
    """The model's knowledge of one elicitation."""

    join: str
    expires_at: datetime
    erase_at: datetime
    status: str = "pending"
    holds: bool = True
    content: dict[str, int] | None = None
    attempts: int = 0
    claimed_by: str | None = None
    until: datetime = NOON
    deliveries: list[str] = field(default_factory=list)
    is_late: bool = False

    @property
    def is_open(self) -> bool:
        return self.status in OPEN

    @property
    def is_delivered(self) -> bool:
        return bool(self.deliveries) and self.deliveries[-1] == self.status

    def end(self, status: str, now: datetime, content: dict[str, int] | None = None) -> None:
        self.status, self.content, self.claimed_by = status, content, None
        self.erase_at = max(now, self.expires_at) + RECORD_RETENTION


class ServiceAgainstModel(RuleBasedStateMachine):
    """The service compared with the model. Rules follow the order of an elicitation's life."""

    ids = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.loop = HandLoop(self.clock)
        self.store = MemoryStore()
        self.model: dict[str, Modelled] = {}
        self.number = 0

    @initialize()
    def open_the_service(self) -> None:
        self.stack = AsyncExitStack()
        self.here: Service = self.loop.run_until_complete(
            self.stack.enter_async_context(process(self.store, self.clock))
        )
        # A new process cannot tell by its clock alone whether a lease has expired.
        self.unsure_until = self.clock() + UNSURE

    def teardown(self) -> None:
        self.loop.run_until_complete(self.stack.aclose())
        self.loop.close()

    @rule()
    def crash(self) -> None:
        """Kill the process: its memory and its connection to the store are lost."""
        dead, self.store = self.store, self.store.sibling()
        self.loop.run_until_complete(self.stack.aclose())
        self.loop.run_until_complete(dead.aclose())
        self.open_the_service()

    @rule(target=ids, join=joins)
    def start(self, join: str) -> str:
        holder = self.holder(join)
        if holder is not None and not self.model[holder].is_open:
            now = self.now_of(holder)
            self.loop.run_until_complete(self.here.elicitations.write(states.release_key(now)))
            self.model[holder].holds, self.model[holder].content = False, None
            holder = None
        if holder is not None:
            with pytest.raises(Conflict):
                self.loop.run_until_complete(asked(self.here, join=join))
            return holder
        fresh = self.loop.run_until_complete(asked(self.here, join=join))
        self.model[fresh.id] = Modelled(
            join=join, expires_at=fresh.expires_at, erase_at=fresh.expires_at + RECORD_RETENTION
        )
        return fresh.id

    @rule(id=ids)
    def open(self, id: str) -> None:
        known = self.model.get(id)
        work = self.here.elicitations.open_attempt(id, browser="b")
        if known is None:
            self.refused(work, KeyError)
        elif not known.is_open or self.clock() >= known.expires_at:
            self.refused(work, NotPossible)
        elif known.attempts == 10:
            self.refused(work, TooManyAttempts)
        else:
            self.loop.run_until_complete(work)
            known.status = "opened"
            known.attempts += 1

    @rule(id=ids, status=noes)
    def decline(self, id: str, status: Status) -> None:
        known = self.model.get(id)
        work = self.here.elicitations.settle(id, status)
        if known is None:
            self.refused(work, KeyError)
        elif not known.is_open:
            self.refused(work, NotPossible)
        else:
            self.loop.run_until_complete(work)
            known.end(status, self.clock())

    @rule(id=ids)
    def complete(self, id: str) -> None:
        """Complete an elicitation in time, again, or late. The model decides whether it is late."""
        self.number += 1
        content = {"n": self.number}
        before = self.model.get(id)
        holder = self.holder(before.join) if before is not None else None
        done = self.loop.run_until_complete(self.here.completing.complete(id, content))
        known = self.model.get(id)
        now = self.clock()
        if known is None:
            assert done is Completion.UNKNOWN
        elif known.is_open:
            # Another test covers answers between the expiry and the sweep. The model accepts both
            # results.
            assert done is Completion.ACCEPTED or now >= known.expires_at
            known.end("accepted", now, content)
            if done is Completion.LATE:
                self.keep_late(id, known, content, holder)
        elif known.status in {"accepted", "failed"}:
            assert done is Completion.ALREADY_SETTLED
        else:
            assert done is Completion.LATE
            known.end("accepted", now, content)
            self.keep_late(id, known, content, holder)

    def keep_late(
        self, id: str, known: Modelled, content: dict[str, int], holder: str | None
    ) -> None:
        """Store a late acceptance for ten more minutes, and supersede a newer open question."""
        is_stored = self.clock() < known.expires_at + LATE_UNTIL
        other = None if holder in {None, id} else self.model[str(holder)]
        is_moved = other is not None and not self.now_of(str(holder)).holds_key
        # The model does not predict whether the newer question lost its key, and asks the service.
        # test_completion.py checks that an acceptance that is too late to store supersedes nothing.
        if other is not None and is_moved and other.status != "accepted":
            if other.is_open:
                other.end("superseded", self.clock())
            other.holds, other.content, other = False, None, None
        known.is_late = True
        known.content = content if is_stored else None
        known.holds = is_stored and other is None

    @rule(id=ids, who=requests)
    def claim(self, id: str, who: str) -> None:
        known = self.model.get(id)
        run, request_id = who.split()
        work = self.here.elicitations.claim(id, run=run, request_id=request_id)
        if known is None:
            self.refused(work, KeyError)
        elif known.is_open or known.is_delivered or not self.is_free(known, who):
            self.refused(work, NotPossible)
        else:
            used = self.loop.run_until_complete(work)
            assert used.content == known.content
            known.claimed_by, known.until = who, self.clock() + LEASE

    @rule(id=ids, who=requests)
    def renew(self, id: str, who: str) -> None:
        known = self.model.get(id)
        self.each(id, lambda e: states.renew(e, request_id=who.split()[1], now=self.clock()))
        if known is not None and known.claimed_by == who:
            known.until = self.clock() + LEASE

    @rule(id=ids, who=requests)
    def release(self, id: str, who: str) -> None:
        known = self.model.get(id)
        self.each(id, lambda e: states.release(e, request_id=who.split()[1]))
        if known is not None and known.claimed_by == who:
            known.claimed_by = None

    @rule(id=ids, who=requests)
    def deliver(self, id: str, who: str) -> None:
        known = self.model.get(id)
        run = who.partition(" ")[0]
        self.each(id, lambda e: states.deliver(e, run=run, now=self.clock()))
        if (
            known is not None
            and known.claimed_by is not None
            and known.claimed_by.split()[0] == run
        ):
            if not known.is_delivered:
                known.deliveries.append(known.status)
            known.content, known.holds = None, False

    @rule(seconds=st.sampled_from([1, 29, 30, 31, 299, 300, 600, 86_400]))
    def let_time_pass(self, seconds: int) -> None:
        self.clock.tick(seconds=seconds)

    @rule()
    def sweep(self) -> None:
        """Expire, wipe and erase. A dead process's claim ends after `HOLD`."""
        self.clock.tick(seconds=HOLD.total_seconds())
        now = self.clock()
        for _ in range(20):
            if not self.loop.run_until_complete(fall_due(self.here)):
                break
        else:
            raise AssertionError("the sweeper never comes to an end")
        for id, known in tuple(self.model.items()):
            if known.is_open and now >= known.expires_at:
                known.end("expired", now)
            stored = LATE_UNTIL if known.status == "accepted" else timedelta()
            leased = known.until if known.claimed_by is not None else NOON
            has_ended = now >= max(known.expires_at + stored, leased)
            if not known.is_open and has_ended and not known.is_delivered:
                known.holds, known.content = False, None
            if now >= known.erase_at:
                del self.model[id]

    @invariant()
    def every_record_agrees_with_the_model(self) -> None:
        for id, known in self.model.items():
            now = self.now_of(id)
            assert now.status == known.status
            assert now.content == known.content
            assert now.holds_key == known.holds
            assert now.is_late == known.is_late
            assert now.erase_at == known.erase_at
            assert (now.delivered_at is not None) == known.is_delivered
            used = None if now.take is None else f"{now.take.run} {now.take.leg}"
            assert used == known.claimed_by
            assert now.take is None or now.take.until == known.until

    @invariant()
    def each_question_has_at_most_one_open_elicitation(self) -> None:
        for join in ("one question", "another"):
            holders = [id for id, known in self.model.items() if known.holds and known.join == join]
            assert len(holders) <= 1
            assert self.holder(join) == (holders[0] if holders else None)

    @invariant()
    def acceptance_is_delivered_once_and_no_call_waits(self) -> None:
        assert all(known.deliveries.count("accepted") <= 1 for known in self.model.values())
        assert len(self.here.elicitations.waiters) == 0

    def holder(self, join: str) -> str | None:
        owner = self.here.elicitations.owners.tag(issuer="tests", subject="alice")
        found = self.loop.run_until_complete(
            self.here.elicitations.holder(Elicitation, owner=owner, key=join)
        )
        return None if found is None else found.id

    def now_of(self, id: str) -> Elicitation:
        current = self.loop.run_until_complete(self.here.elicitations.get(id))
        assert current is not None
        return current

    def is_free(self, known: Modelled, who: str) -> bool:
        is_out = self.clock() >= max(known.until, self.unsure_until)
        return known.claimed_by in {None, who} or is_out

    def each(self, id: str, change) -> None:
        self.loop.run_until_complete(self.here.elicitations.each([id], change))

    def refused(self, work, error: type[Exception]) -> None:
        with pytest.raises(error) as refused:
            self.loop.run_until_complete(work)
        assert isinstance(refused.value, ElicitError | KeyError)


TestServiceAgainstModel = ServiceAgainstModel.TestCase
TestServiceAgainstModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
