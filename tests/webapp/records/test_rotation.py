"""Rotation of secrets: existing data stays readable, nothing is lost, and it can run again."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from flows.crypto.tokens import Claims, Purpose, Ring, Tokens, fingerprint_of, wrapped_under
from flows.errors import StoreUnavailable, Unreadable
from tests.support.clock import Clock
from tests.support.rotation import Interrupted, local
from tests.support.service_env import asked, process
from webapp.cli.keys import Keys, list_keys, retire, rotate
from webapp.command import CommandRefused
from webapp.records.owners import SERVICE, count_wrapped, must_be_servable, open_owners, rewrap
from webapp.stores import Record, Store
from webapp.stores.sqlite import MemoryStore, SqliteStore

OLD, NEW, NEWER = (f"{word} secret of thirty-two bytes or so".encode() for word in ("1", "2", "3"))


@pytest.fixture(params=["memory", "sqlite"])
async def store(request, tmp_path: Path) -> AsyncIterator[Store]:
    store: Store
    if request.param == "memory":
        store = Interrupted()
    else:
        store = await SqliteStore.open(tmp_path / "elicit.db")
    yield store
    await store.aclose()


def deployed(store: Store, *secrets: bytes) -> Keys:
    return Keys(ring=Ring(secrets), store=store, place="the store", variable="ELICIT_SECRET")


async def people(store: Store, ring: Ring, *, number: int) -> Sequence[str]:
    """Create `number` owners with a data key each, and return their tags."""
    owners = await open_owners(store=store, ring=ring)
    tags = [owners.tag(issuer="tests", subject=str(n)) for n in range(number)]
    for tag in tags:
        await owners.locker(tag)
    return tags


async def opens_all(store: Store, ring: Ring, tags: Sequence[str]) -> None:
    owners = await open_owners(store=store, ring=ring)
    assert [owners.tag(issuer="tests", subject=str(n)) for n in range(len(tags))] == tags
    for tag in tags:
        await owners.locker(tag)


def test_secret_of_the_key_file_is_not_in_its_repr(file):
    (secret,) = file.read()
    assert str(secret.value)[2:-1] not in repr(secret)


async def test_rotation_rewraps_every_key_and_old_secret_still_decrypts(store, file, clock):
    tags = await people(store, file.ring(), number=250)
    (old,) = file.ring().fingerprints
    lines = await rotate(local(store, file), now=clock())
    new, former = file.ring().fingerprints
    assert former == old
    assert lines[-1] == f"251 keys of the store encrypted again with {new.hex()}."
    assert await count_wrapped(store) == {new: 251}
    await opens_all(store, Ring([file.read()[0].value]), tags)


async def test_running_process_continues_after_rotation(store, file, clock):
    async with process(store, clock, ring=file.ring()) as before:
        elicitation = await asked(before)
        link = before.links.of(elicitation, now=clock())
        await rotate(local(store, file), now=clock())
        async with process(store, clock, ring=file.ring()) as after:
            newer = await asked(after, subject="bob", join="another question")
            its_link = after.links.of(newer, now=clock())
            for here in (before, after):
                for address, of in ((link, elicitation), (its_link, newer)):
                    claims = here.links.read(
                        address.rpartition("/")[2], purpose=Purpose.LINK, now=clock()
                    )
                    assert claims.id == of.id
                    assert await here.elicitations.get(claims.id) == of
        # The process now seals with the new secret, so that the old one can be retired.
        await asked(before, subject="carol", join="a third one")
    assert set(await count_wrapped(store)) == {file.ring().newest}


async def test_keys_of_new_owners_are_rewrapped_during_rotation(store, file, clock):
    rings = [file.ring(), file.ring()]
    known = await people(store, rings[0], number=5)
    writers = [await open_owners(store=store, ring=ring) for ring in rings]

    async def come(number: int) -> str:
        owners = writers[number % 2]
        tag = owners.tag(issuer="meanwhile", subject=str(number // 2))
        await owners.locker(tag)
        return tag

    comers, _ = await asyncio.gather(
        asyncio.gather(*(come(number) for number in range(120))),
        rotate(local(store, file), now=clock()),
    )
    newest = file.ring().newest
    assert await count_wrapped(store) == {newest: 1 + len(known) + 60}
    fresh = await open_owners(store=store, ring=Ring([file.read()[0].value]))
    for tag in [*known, *comers]:
        await fresh.locker(tag)


async def test_key_wrapped_before_and_written_after_rotation_is_rewrapped(file, clock):
    class Slow(MemoryStore):
        """A store that writes the first data key only after a rotation by another process."""

        has_waited = False

        async def write(self, *records: Record) -> tuple[Record, ...]:
            if records[0].kind == "data key" and not self.has_waited:
                self.has_waited = True
                await rotate(local(self, file), now=clock())
            return await super().write(*records)

    store = Slow()
    owners = await open_owners(store=store, ring=file.ring())
    await owners.locker("somebody")
    assert await count_wrapped(store) == {file.ring().newest: 2}


@pytest.mark.parametrize("written", range(5))
async def test_interrupted_rotation_is_finished_by_next_rotation(file, clock, written):
    store = Interrupted()
    tags = await people(store, file.ring(), number=4)
    store.left = written
    with pytest.raises(StoreUnavailable):
        await rotate(local(store, file), now=clock())
    store.left = 1000
    await opens_all(store, file.ring(), tags)
    (line,) = await rotate(local(store, file), now=clock())
    assert "was interrupted and is now finished" in line
    assert await count_wrapped(store) == {file.ring().newest: 5}
    assert len(file.read()) == 2
    await opens_all(store, Ring([file.read()[0].value]), tags)


async def test_concurrent_rotations_lose_nothing(store, file, clock):
    tags = await people(store, file.ring(), number=30)
    (old,) = file.ring().fingerprints
    await asyncio.gather(*(rotate(local(store, file), now=clock()) for _ in range(4)))
    fingerprints = file.ring().fingerprints
    assert fingerprints[-1] == old
    assert await count_wrapped(store) == {fingerprints[0]: 31}
    await opens_all(store, Ring([file.read()[0].value]), tags)


async def test_concurrent_additions_to_file_do_not_lose_secrets(file, clock):
    def add(number: int) -> bool:
        was_added: bool = file.put_in_front(
            f"{number} is a secret of thirty-two bytes".encode(),
            before=file.ring().newest,
            now=clock(),
        )
        return was_added

    added = await asyncio.gather(*(asyncio.to_thread(add, number) for number in range(20)))
    assert len(file.read()) == 1 + sum(added)
    assert sum(added) > 0


async def test_owner_erased_during_rotation_is_not_restored(file, clock):
    class Erasing(MemoryStore):
        async def write(self, *records: Record) -> tuple[Record, ...]:
            if records[0].version:
                await self.erase(owner=records[0].owner)
            return await super().write(*records)

    store = Erasing()
    await people(store, Ring([OLD]), number=3)
    done = await rewrap(store=store, ring=Ring([NEW, OLD]))
    assert (done.done, done.lost) == (0, 0)
    assert list(await store.list("data key")) == []


async def test_rotation_with_other_secrets_changes_neither_store_nor_file(store, file, clock):
    await people(store, Ring([OLD]), number=2)
    before = file.path.read_bytes(), await count_wrapped(store)
    with pytest.raises(Unreadable):
        await rotate(local(store, file), now=clock())
    assert (file.path.read_bytes(), await count_wrapped(store)) == before


async def test_undecryptable_key_is_counted_and_left_unchanged(store, file, clock):
    ring = file.ring()
    one, other = await people(store, ring, number=2)
    damaged = await store.read(one, "data key", one)
    assert damaged is not None
    await store.write(replace(damaged, sealed=damaged.sealed[:-1] + b"~"))
    lines = await rotate(local(store, file), now=clock())
    assert lines[1:] == [
        f"2 keys of the store encrypted again with {file.ring().newest.hex()}.",
        "1 key left unchanged: no secret here decrypts them.",
    ]
    stored = await store.read(other, "data key", other)
    assert stored is not None
    assert wrapped_under(stored.sealed) == file.ring().newest


async def test_secret_is_retired_only_if_unused(file, clock):
    store = Interrupted()
    await people(store, file.ring(), number=3)
    old = file.ring().newest
    with pytest.raises(CommandRefused, match="is the newest"):
        await retire(local(store, file), fingerprint=old.hex(), now=clock())
    store.left = 2
    with pytest.raises(StoreUnavailable):
        await rotate(local(store, file), now=clock())
    store.left = 1000
    with pytest.raises(CommandRefused, match="still encrypts 2 keys of the store") as refused:
        await retire(local(store, file), fingerprint=old.hex(), now=clock(), anyway=True)
    assert "first run: elicit keys rotate" in str(refused.value)
    await rotate(local(store, file), now=clock())
    clock.tick(days=31)
    with pytest.raises(CommandRefused, match="can be valid until 2026-04-01 13:00 UTC"):
        await retire(local(store, file), fingerprint=old.hex(), now=clock())
    clock.tick(hours=1)
    keys = local(store, file)
    (line,) = await retire(keys, fingerprint=old.hex().upper(), now=clock())
    assert "is removed from" in line
    assert file.ring().fingerprints == keys.ring.fingerprints == (keys.ring.newest,)
    with pytest.raises(CommandRefused, match="There is no secret of"):
        await retire(keys, fingerprint=old.hex(), now=clock())


async def test_retiring_used_secret_with_anyway_leaves_questions_readable(store, file, clock):
    await people(store, file.ring(), number=1)
    async with process(store, clock, ring=file.ring()) as running:
        elicitation = await asked(running)
        old = file.ring().newest
        await rotate(local(store, file), now=clock())
        await retire(local(store, file), fingerprint=old.hex(), now=clock(), anyway=True)
        # The running process still has the owner's key. Links from before the rotation are void.
        assert running.elicitations.owners.lockers.get(elicitation.owner) is not None
        async with process(store, clock, ring=file.ring()) as fresh:
            assert await fresh.elicitations.get(elicitation.id) == elicitation


async def test_secret_is_not_retired_based_on_store_which_was_never_served(store, file, clock):
    old = file.ring().newest
    file.put_in_front(NEW, before=old, now=clock() - timedelta(days=99))
    with pytest.raises(CommandRefused, match="set ELICIT_STORE"):
        await retire(local(store, file), fingerprint=old.hex(), now=clock())
    assert len(file.read()) == 2


async def test_list_shows_keys_wrapped_by_each_secret_and_missing_secrets(store, file, clock):
    await people(store, file.ring(), number=2)
    old = file.ring().newest
    await rotate(local(store, file), now=clock())
    stranger = await open_owners(store=MemoryStore(), ring=Ring([OLD]))
    await stranger.locker("x")
    foreign = await stranger.store.read("x", "data key", "x")
    assert foreign is not None
    await store.write(replace(foreign, version=0))
    rows = (await list_keys(local(store, file))).rows
    assert {(row.source, row.store) for row in rows} == {(str(file.path), "the store")}
    assert [(row.fingerprint, row.wraps, row.state, row.ceased_at) for row in rows] == [
        (file.ring().newest.hex(), 3, "newest", None),
        (old.hex(), 0, "older", clock()),
        (fingerprint_of(OLD).hex(), 1, "not here", None),
    ]


async def test_rotation_with_single_secret_in_environment_explains_steps(store, clock):
    await people(store, Ring([OLD]), number=1)
    with pytest.raises(CommandRefused, match="holds one secret") as refused:
        await rotate(deployed(store, OLD), now=clock())
    steps = re.findall(r"ELICIT_SECRET=(\S+)", str(refused.value))
    assert steps == ["old,new", "new,old", "new"]


async def test_secret_which_no_process_has_loaded_wraps_no_key(store, clock):
    tags = await people(store, Ring([OLD]), number=2)
    with pytest.raises(CommandRefused, match="No process of this store has ever loaded"):
        await rotate(deployed(store, NEW, OLD), now=clock())
    assert await count_wrapped(store) == {fingerprint_of(OLD): 3}
    await rotate(deployed(store, NEW, OLD), now=clock(), anyway=True)
    await opens_all(store, Ring([NEW]), tags)


async def test_documented_rotation_steps_break_nothing_at_any_moment(store, clock):
    """Processes at two successive steps of the rotation read each other's links."""
    steps = [Ring([OLD]), Ring([OLD, NEW]), Ring([NEW, OLD])]
    tags = await people(store, steps[0], number=3)
    links: list[str] = []
    for before, after in pairwise(steps):
        for ring in (before, after):
            async with process(store, clock, ring=ring) as running:
                elicitation = await asked(running, join=f"question {len(links)}")
                links.append(running.links.of(elicitation, now=clock()))
        for ring in (before, after):
            async with process(store, clock, ring=ring) as running:
                for link in links:
                    text = link.rpartition("/")[2]
                    found = running.links.read(text, purpose=Purpose.LINK, now=clock())
                    assert await running.elicitations.get(found.id) is not None
    lines = await rotate(deployed(store, NEW, OLD), now=clock())
    assert lines[-1].startswith("Do not change ELICIT_SECRET yet")
    await opens_all(store, steps[1], tags)
    await opens_all(store, Ring([NEW]), tags)
    (line,) = await retire(
        deployed(store, NEW, OLD), fingerprint=fingerprint_of(OLD).hex(), now=clock()
    )
    assert "remove it from ELICIT_SECRET once" in line


async def test_single_secret_writes_no_note_and_several_write_separate_notes(store):
    for _ in range(2):
        await open_owners(store=store, ring=Ring([OLD]))
        assert list(await store.list("served secret")) == []
    for _ in range(2):
        await open_owners(store=store, ring=Ring([OLD, NEW]))
        notes = {(note.owner, note.id) for note in await store.list("served secret")}
        assert notes == {(SERVICE, fingerprint_of(secret).hex()) for secret in (OLD, NEW)}


def test_token_is_valid_although_secret_changes_while_token_is_made(clock: Clock) -> None:
    secrets = [OLD]

    def restless() -> list[bytes]:
        secrets.insert(0, f"secret number {len(secrets)} of thirty-two bytes".encode())
        return secrets

    tokens = Tokens(Ring(secrets, reread=restless), origin="https://elicit.example")
    claims = Claims(purpose=Purpose.LINK, id="e", expires_at=clock() + timedelta(days=1))
    text = tokens.mint(claims, now=clock())
    assert tokens.read(text, purpose=Purpose.LINK, now=clock()) == claims


def test_ring_rereads_secrets_for_unknown_fingerprint() -> None:
    news: list[list[bytes]] = []
    ring = Ring([OLD], reread=lambda: news.pop() if news else None)
    wrapped = Ring([NEWER, OLD]).wrap("o", b"k" * 32)
    with pytest.raises(Unreadable):
        ring.unwrap("o", wrapped)
    news.append([NEWER, OLD])
    assert ring.unwrap("o", wrapped) == b"k" * 32
    assert ring.newest == fingerprint_of(NEWER)
    assert len(set(ring.derive_all("csrf"))) == 2


async def test_secret_which_still_wraps_key_cannot_be_removed() -> None:
    store = MemoryStore()
    await (await open_owners(store=store, ring=Ring([OLD]))).locker("a" * 20)
    await open_owners(store=store, ring=Ring([NEW, OLD]))
    await rewrap_the_pepper_only(store)
    with pytest.raises(Unreadable):
        await must_be_servable(store, Ring([NEW]))
    await rewrap(store=store, ring=Ring([NEW, OLD]))
    await must_be_servable(store, Ring([NEW]))


async def rewrap_the_pepper_only(store: Store) -> None:
    """Rewrap only the pepper, as an interrupted rotation does."""
    (found,) = await store.list("pepper", owner=SERVICE)
    ring = Ring([NEW, OLD])
    name = f"{SERVICE} pepper"
    await store.write(replace(found, sealed=ring.wrap(name, ring.unwrap(name, found.sealed))))
