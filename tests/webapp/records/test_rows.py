"""Rows: bytes that were moved, mixed or rolled back cannot be opened."""

import asyncio

import msgspec
import pytest
from msgspec.structs import replace

from flows.crypto.tokens import Ring
from flows.elicitation.run import Run
from flows.elicitation.states import Elicitation, Status
from flows.errors import Unreadable
from tests.support.clock import Clock
from tests.support.service_env import RING, asked, process, question_in_store
from webapp.records.owners import SERVICE, open_owners
from webapp.records.rows import Rows
from webapp.records.values import Alias
from webapp.service import Service
from webapp.stores import Record
from webapp.stores.sqlite import MemoryStore

OTHER = b"another secret of thirty-two byte"


async def record_of(here: Service, elicitation: Elicitation) -> Record:
    found = await here.elicitations.store.read(elicitation.owner, "elicitation", elicitation.id)
    assert found is not None
    return found


async def opens(here: Service, record: Record) -> Elicitation:
    return await here.elicitations.rows.open(record, Elicitation)


async def test_stored_question_is_read_back_unchanged(here: Service) -> None:
    fresh = question_in_store(here, waiter="leg")
    await here.elicitations.write(fresh)
    stored = await here.elicitations.get(fresh.id)
    assert stored == replace(fresh, version=1)


async def test_stored_bytes_reveal_nothing_of_question(here: Service) -> None:
    record = await record_of(here, await asked(here))
    for word in (b"Please", b"example.com", b"pending", b'"s"'):
        assert word not in record.sealed


async def test_sealed_bytes_of_row_do_not_open_in_another(here: Service) -> None:
    one, other = await asked(here, join="1"), await asked(here, join="2")
    moved = replace(await record_of(here, one), sealed=(await record_of(here, other)).sealed)
    with pytest.raises(Unreadable):
        await opens(here, moved)


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.PENDING] + ["", "Pending"])
async def test_changed_status_is_detected(here: Service, status: str) -> None:
    record = await record_of(here, await asked(here))
    with pytest.raises(Unreadable):
        await opens(here, replace(record, status=str(status)))


@pytest.mark.parametrize("key", [None, "", "another question"])
async def test_changed_key_is_detected(here: Service, key: str | None) -> None:
    record = await record_of(here, await asked(here))
    with pytest.raises(Unreadable):
        await opens(here, replace(record, key=key))


async def test_row_with_other_version_kind_id_or_owner_does_not_open(here: Service) -> None:
    one, other = await asked(here), await asked(here, subject="bob")
    record = await record_of(here, one)
    for moved in (
        replace(record, version=2),
        replace(record, version=0),
        replace(record, kind="run"),
        replace(record, id=record.id + "x"),
        replace(record, owner=other.owner),
    ):
        with pytest.raises(Unreadable):
            await opens(here, moved)


async def test_older_version_of_row_does_not_open_in_place_of_newer(here: Service) -> None:
    elicitation = await asked(here)
    old = await record_of(here, elicitation)
    await here.elicitations.settle(elicitation.id, Status.DECLINED)
    new = await record_of(here, elicitation)
    with pytest.raises(Unreadable):
        await opens(here, replace(new, sealed=old.sealed, status=old.status))


async def test_changed_row_is_refused_by_every_reader(here: Service, store: MemoryStore) -> None:
    elicitation = await asked(here)
    record = await record_of(here, elicitation)
    await store.write(replace(record, status="accepted"))
    with pytest.raises(Unreadable):
        await here.elicitations.get(elicitation.id)
    with pytest.raises(Unreadable):
        await here.elicitations.holder(
            Elicitation, owner=elicitation.owner, key=elicitation.dedupe_key
        )
    with pytest.raises(Unreadable):
        await here.completing.complete(elicitation.id, {})


async def test_row_is_not_read_as_other_kind(here: Service) -> None:
    elicitation = await asked(here)
    record = await record_of(here, elicitation)
    with pytest.raises(msgspec.ValidationError):
        await here.elicitations.rows.open(record, Run)


async def test_store_with_other_secrets_is_refused_at_startup(
    here: Service, store: MemoryStore, clock: Clock
) -> None:
    with pytest.raises(Unreadable):
        async with process(store.sibling(), clock, ring=Ring([OTHER])):
            pass


async def test_rotated_ring_reads_existing_rows(
    here: Service, store: MemoryStore, clock: Clock
) -> None:
    elicitation = await asked(here)
    ring = Ring([OTHER, b"a secret of the tests, 32 bytes!"])
    async with process(store.sibling(), clock, ring=ring) as rotated:
        assert await rotated.elicitations.get(elicitation.id) == elicitation
        owner = rotated.elicitations.owners.tag(issuer="tests", subject="alice")
        assert owner == elicitation.owner


async def test_concurrently_starting_processes_agree_on_pepper_and_data_keys() -> None:
    store = MemoryStore()
    openings = [store, *(store.sibling() for _ in range(3))]
    all_owners = await asyncio.gather(*(open_owners(store=each, ring=RING) for each in openings))
    tags = {owners.tag(issuer="i", subject="s") for owners in all_owners}
    assert len(tags) == 1
    rows = [Rows(owners) for owners in all_owners]
    aliases = [
        Alias(id=f"a{n}", owner=SERVICE, elicitation_id="e", erase_at=Clock()()) for n in range(4)
    ]
    await asyncio.gather(*(each.write(alias) for each, alias in zip(rows, aliases, strict=True)))
    for each in rows:
        assert [one.id for one in await each.all(Alias)] == ["a0", "a1", "a2", "a3"]


async def test_process_which_lost_race_for_key_uses_winning_key() -> None:
    class Late(MemoryStore):
        """A store that finds nothing at first, as if the process had read slightly too early."""

        async def read(self, owner: str, kind: str, id: str) -> Record | None:
            return None

    store = MemoryStore()
    first = await open_owners(store=store, ring=RING)
    late = Late(shares_with=store)
    second = await open_owners(store=late, ring=RING)
    assert first.tag(issuer="i", subject="s") == second.tag(issuer="i", subject="s")
    alias = Alias(id="a", owner="o" * 20, elicitation_id="e", erase_at=Clock()())
    await Rows(first).write(alias)
    written = await store.read(alias.owner, "alias", "a")
    assert written is not None
    assert (await Rows(second).open(written, Alias)).id == "a"


async def test_data_key_is_valid_only_for_its_owner(here: Service, store: MemoryStore) -> None:
    alice, bob = await asked(here), await asked(here, subject="bob")
    keys = {
        record.owner: record
        for record in await store.list("data key")
        if record.owner in {alice.owner, bob.owner}
    }
    assert keys[alice.owner].sealed != keys[bob.owner].sealed
    fresh = await open_owners(store=store, ring=RING)
    await store.write(replace(keys[bob.owner], sealed=keys[alice.owner].sealed))
    with pytest.raises(Unreadable):
        await fresh.locker(bob.owner)
    await fresh.locker(alice.owner)


async def test_repr_of_service_objects_shows_no_secret(here: Service) -> None:
    printed = repr(here.elicitations.owners) + repr(here.links) + repr(here.browser)
    assert "a secret of the tests" not in printed
