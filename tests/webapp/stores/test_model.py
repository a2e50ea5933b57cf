"""Property tests: after any sequence of calls, a store has the same records as a plain dict.

Each store has a subclass of `ComparedWithDict`.
"""

import asyncio
import tempfile
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import TestCase

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from tests.support.postgres_server import fresh_database
from tests.support.valkey_server import fresh_cluster, fresh_valkey
from webapp.stores import Conflict, Record, Store, open_store
from webapp.stores.sqlite import MemoryStore

START = datetime(2026, 3, 1, tzinfo=UTC)
owners = st.sampled_from("ab")
kinds = st.sampled_from(["elicitation", "account"])
ids = st.sampled_from(["1", "2", "3"])
keys = st.sampled_from([None, "k", "l"])
statuses = st.sampled_from(["pending", "accepted"])
minutes = st.integers(min_value=0, max_value=9)
times = st.none() | minutes.map(lambda number: START + timedelta(minutes=number))
changes = st.tuples(kinds, ids, keys, statuses, times, times, st.binary(max_size=4))


class ComparedWithDict(RuleBasedStateMachine):
    """A store that is often reopened, compared with a model (`records` and `claims`)."""

    def __init__(self):
        super().__init__()
        self.records: dict[tuple[str, str, str], Record] = {}
        self.claims: dict[tuple[str, str, str], datetime] = {}
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.store = self.open()

    def open(self) -> Store:
        raise NotImplementedError

    def opened(self, url: str) -> Store:
        return self.runner.run(open_store(url))

    def teardown(self):
        self.runner.run(self.store.aclose())
        self.runner.run(self.stack.aclose())
        self.runner.close()

    def conflict(self, call):
        for item in call.values():
            found = self.records.get((item.owner, item.kind, item.id))
            if item.version != (found.version if found else 0):
                return True
        after = {**self.records, **call}
        held = [(r.owner, r.kind, r.key) for r in after.values() if r.key is not None]
        return len(set(held)) < len(held)

    @rule(
        owner=owners,
        changes=st.lists(changes, min_size=1, max_size=3, unique_by=lambda c: c[:2]),
        stale=st.sampled_from([0, 0, 0, 0, 1]),
    )
    def write(self, owner, changes, stale):
        call = {}
        for kind, record_id, key, status, due_at, erase_at, sealed in changes:
            before = self.records.get((owner, kind, record_id))
            call[owner, kind, record_id] = Record(
                owner=owner,
                kind=kind,
                id=record_id,
                status=status,
                key=key,
                due_at=due_at,
                erase_at=erase_at,
                version=(before.version if before else 0) + stale,
                sealed=sealed,
            )
        used = [(item.kind, item.key) for item in call.values() if item.key is not None]
        if len(set(used)) < len(used):
            return
        try:
            written = self.runner.run(self.store.write(*call.values()))
        except Conflict as conflict:
            assert self.conflict(call)
            if conflict.found is not None:
                found = conflict.found
                assert self.records[found.owner, found.kind, found.id] == found
            return
        assert not self.conflict(call)
        assert written == tuple(replace(r, version=r.version + 1) for r in call.values())
        for name, item in zip(call, written, strict=True):
            self.records[name] = item
            self.claims.pop(name, None)

    @rule(owner=st.none() | owners, before=times)
    def erase(self, owner, before):
        if owner is None and before is None:
            return
        gone = [
            name
            for name, item in self.records.items()
            if (owner is None or item.owner == owner)
            and (before is None or (item.erase_at is not None and item.erase_at <= before))
        ]
        assert self.runner.run(self.store.erase(owner=owner, before=before)) == len(gone)
        for name in gone:
            del self.records[name]
            self.claims.pop(name, None)

    @rule(now=minutes, hold=minutes)
    def due(self, now, hold):
        moment = START + timedelta(minutes=now)
        expected = {
            name: item
            for name, item in self.records.items()
            if item.due_at is not None
            and item.due_at <= moment
            and not moment < self.claims.get(name, moment) <= moment + 2 * timedelta(minutes=hold)
        }
        found = self.runner.run(self.store.due(moment, hold=timedelta(minutes=hold)))
        assert {(item.owner, item.kind, item.id): item for item in found} == expected
        due = [item.due_at for item in found if item.due_at is not None]
        assert due == sorted(due)
        for name in expected:
            self.claims[name] = moment + timedelta(minutes=hold)

    @rule()
    def open_again(self):
        before, self.store = self.store, self.open()
        self.runner.run(before.aclose())

    @rule(owner=owners, kind=kinds, key=keys)
    def find(self, owner, kind, key):
        if key is not None:
            expected: list[Record | None] = [
                item
                for item in self.records.values()
                if (item.owner, item.kind, item.key) == (owner, kind, key)
            ]
            found = self.runner.run(self.store.find(owner, kind, key))
            assert [found] == (expected or [None])

    @invariant()
    def lists_agree(self):
        found = [
            item
            for kind in ("elicitation", "account")
            for item in self.runner.run(self.store.list(kind))
        ]
        assert {(item.owner, item.kind, item.id): item for item in found} == self.records
        assert len(found) == len(self.records)


class MemoryAgainstDict(ComparedWithDict):
    def open(self) -> Store:
        store = getattr(self, "store", None)
        return store.sibling() if store else MemoryStore()


class SqliteAgainstDict(ComparedWithDict):
    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        super().__init__()
        self.stack.callback(self.folder.cleanup)

    def open(self) -> Store:
        return self.opened(f"sqlite:///{self.folder.name}/store.db")


class PostgresAgainstDict(ComparedWithDict):
    url = ""

    def open(self) -> Store:
        if not self.url:
            self.url = self.runner.run(self.stack.enter_async_context(fresh_database()))
        return self.opened(self.url)


class ValkeyAgainstDict(ComparedWithDict):
    url = ""

    def open(self) -> Store:
        self.url = self.url or fresh_valkey().url
        return self.opened(self.url)


class ValkeyClusterAgainstDict(ComparedWithDict):
    url = ""

    def open(self) -> Store:
        self.url = self.url or fresh_cluster()[0].url
        return self.opened(self.url)


def enough(machine: type[ComparedWithDict], *, examples: int = 40) -> type[TestCase]:
    case: Any = machine.TestCase
    case.settings = settings(max_examples=examples, stateful_step_count=25, deadline=None)
    found: type[TestCase] = case
    return found


TestMemoryIsAsADict = enough(MemoryAgainstDict)
TestSqliteIsAsADict = enough(SqliteAgainstDict)
TestPostgresIsAsADict = enough(PostgresAgainstDict, examples=12)
TestValkeyIsAsADict = enough(ValkeyAgainstDict, examples=20)
TestValkeyClusterIsAsADict = enough(ValkeyClusterAgainstDict, examples=12)
