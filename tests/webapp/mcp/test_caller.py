"""`elicit.caller`: a stable, opaque id of the person, for an author's own tables."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from flows import CallingPerson, NoAsker, elicit
from flows.crypto.tokens import Ring
from tests.support.issuer import issuing
from tests.support.mcp_server import ServerEnv, new_server, server_env
from tests.support.ways import protocol
from webapp.records.owners import open_owners, rewrap
from webapp.stores.sqlite import MemoryStore
from webapp.testing import elicit_person

EMAIL = "ada@example.com"
seen: list[CallingPerson] = []


@pytest.fixture(autouse=True)
def _empty() -> None:
    seen.clear()


def asking_who(library: str) -> Any:
    server = new_server(library)

    @server.tool()
    async def who() -> str:
        seen.append(elicit.caller())
        return "noted"

    @server.tool()
    async def hold() -> str:
        await elicit.on_end(note, key="a")
        return "held"

    return server


@asynccontextmanager
async def signed_in(library: str, store: MemoryStore) -> AsyncIterator[tuple[ServerEnv, Any]]:
    async with (
        issuing() as issuer,
        server_env(asking_who(library), store=store, who=issuer.who(), is_alone=False) as env,
    ):
        yield env, issuer


@pytest.mark.every_way
async def test_caller_id_depends_on_the_subject_and_contains_no_part_of_the_token(
    library, revision
):
    # finding: XA1
    async with signed_in(library, MemoryStore()) as (env, issuer):
        for subject in (EMAIL, "bob", EMAIL):
            headers = issuer.bearer(subject, audience=env.mcp_url, email=EMAIL)
            async with env.caller(revision, headers=headers) as caller:
                assert not (await caller.result("who")).is_error
    ada, bob, again = seen
    assert ada.is_known
    assert not ada.is_local
    assert ada.issuer == issuer.url
    assert ada.id == again.id != bob.id
    assert EMAIL not in str(ada)
    assert "ada" not in str(ada)


async def test_caller_id_is_the_same_for_every_library_and_revision_and_after_a_restart():
    # finding: XA1
    store = MemoryStore()
    for library in ("mcp", "fastmcp"):
        for revision in ("legacy", "2026-07-28"):
            async with (
                server_env(asking_who(library), store=store, is_alone=False) as env,
                env.caller(revision) as caller,
            ):
                assert not (await caller.result("who")).is_error
    assert len(seen) == 4
    assert len({one.id for one in seen}) == 1
    assert all(one.is_local and one.issuer is None for one in seen)


async def test_caller_id_is_the_same_after_a_rotation_of_the_secret():
    # finding: XA1
    store, old, new = MemoryStore(), b"the old secret" * 3, b"the new secret" * 3
    tags = []
    for secrets in ([old], [new, old], [new]):
        owners = await open_owners(store=store, ring=Ring(secrets))
        tags.append(owners.pepper.tag("caller", "shop", "owner", size=18))
        if secrets == [new, old]:
            await rewrap(store=store, ring=Ring(secrets))
    assert len(set(tags)) == 1
    elsewhere = await open_owners(store=MemoryStore(), ring=Ring([new]))
    assert elsewhere.pepper.tag("caller", "shop", "owner", size=18) not in tags


async def test_caller_without_a_subject_is_unknown_and_registers_nothing(library, revision):
    # finding: XA1
    async with signed_in(library, store := MemoryStore()) as (env, issuer):
        headers = issuer.bearer(None, audience=env.mcp_url)
        async with env.caller(revision, headers=headers) as caller:
            await caller.result("who")
            refused = await caller.result("hold")
        assert refused.is_error
        assert "on_end registered nothing" in str(refused.content)
        assert not await store.list("ending")
    (one,) = seen
    assert one.id is None
    assert not one.is_known


async def test_ending_in_the_test_kit_has_the_id_of_the_caller(server, revision):
    # finding: XA1
    @server.tool()
    async def who() -> str:
        seen.append(elicit.caller())
        await elicit.on_end(note, key="a")
        return "noted"

    async with elicit_person(server, revision=protocol(revision)) as person:
        await person.call("who")
        (ending,) = person.endings
    assert ending.caller == seen[0].id
    assert seen[0].is_local


def test_caller_outside_a_call_is_refused():
    with pytest.raises(NoAsker):
        elicit.caller()


def note(ending: Any) -> None: ...
