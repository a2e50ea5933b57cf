"""Stores of earlier versions: every kind of row can be read under its id and written unchanged.

earlier_store.json contains a record of each kind, written by a version without the records package.
"""

from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.support.clock import Clock
from tests.support.service_env import RING, process
from webapp.calls.once import OncePlace, numbered
from webapp.records.ids import RowIds
from webapp.records.owners import SERVICE, Row, open_owners
from webapp.records.rows import Rows
from webapp.records.values import KINDS
from webapp.stores import Record
from webapp.stores.sqlite import MemoryStore

EARLIER = msgspec.json.decode(
    (Path(__file__).parent / "earlier_store.json").read_bytes(), type=list[Record]
)


@pytest.fixture
async def earlier() -> MemoryStore:
    store = MemoryStore()
    for record in EARLIER:
        await store.write(replace(record, version=0))
    return store


def without_new(now: Any, before: Any) -> Any:
    """Return a row's fields without the fields added since, and check that those are empty."""
    if not (isinstance(now, dict) and isinstance(before, dict)):
        return now
    assert not any(now[field] for field in now.keys() - before.keys())
    return {field: without_new(now[field], before[field]) for field in before}


async def test_every_kind_of_row_is_readable_with_its_former_values(
    earlier: MemoryStore,
) -> None:
    owners = await open_owners(store=earlier, ring=RING)
    rows = Rows(owners)
    for kind, name in KINDS.items():
        records = [record for record in EARLIER if record.kind == name]
        assert records, name
        for record in records:
            value = await rows.open(record, kind)  # type: ignore[type-var]  # one of KINDS
            row = Row(owner=record.owner, kind=name, id=record.id, version=record.version)
            plain = (await owners.locker(record.owner)).open(row, record.sealed)
            now = msgspec.json.decode(msgspec.json.encode(replace(value, version=0)))
            assert without_new(now, msgspec.json.decode(plain)) == msgspec.json.decode(plain), name
            await rows.write(value)  # type: ignore[arg-type]  # the same
            again = await earlier.read(record.owner, name, record.id)
            assert again is not None
            assert replace(again, sealed=b"") == replace(record, sealed=b"", version=2)


async def test_derived_row_ids_are_unchanged(
    earlier: MemoryStore,
) -> None:
    ids = RowIds((await open_owners(store=earlier, ring=RING)).pepper)
    (asked,) = [record for record in EARLIER if record.kind == "elicitation"]
    sold = {"provider": "stripe", "session": "cs_1"}
    reported = {"provider": "stripe", "event": "evt_1"}
    found = {
        "payment": {ids.payment(asked.id, **sold)},
        "loose end": {ids.unresolved(asked.id, owner=of, **sold) for of in (asked.owner, SERVICE)},
        "hook": {ids.webhook(asked.id, owner=of, **reported) for of in (asked.owner, SERVICE)},
        "client": {ids.client(asked.owner, name="editor", release="1.2")},
        "early news": {ids.early_event(SERVICE, provider="stripe", payment="pi_1")},
    }
    for kind, expected in found.items():
        assert {record.id for record in EARLIER if record.kind == kind} == expected


async def test_ids_and_idempotency_keys_of_steps_are_unchanged(earlier: MemoryStore) -> None:
    # If an update changed these ids, the server would repeat the steps of stored runs.
    (asked,) = [record for record in EARLIER if record.kind == "elicitation"]
    async with process(earlier, Clock()) as service:
        number, (last, own) = await numbered(
            service.elicitations,
            owner=asked.owner,
            scope="run",
            call="a call",
            retention=timedelta(days=1),
        )
        wish = replace(number, day="2026-03-01")
        place = OncePlace(
            owner=asked.owner, scope="run", wish=wish, step=("buy", "", "1"), name="book"
        )
        key = place.idempotency_key(service.elicitations)
    ids = [id.removeprefix(asked.owner) for id in (last.id, own.id, place.id(service.elicitations))]
    assert (*ids, key) == (
        "AzZ5vlKTArb1jkENGDo0zE_L",
        "lAVnTqCiG8pQM15TRs2LLZLd",
        "PmHyFVJdPL80sP6oWCxosVCP",
        "n8oPwIg-0a66HgVHI_NWM15h",
    )
