"""Approvals: who owns them, what they cover, how long they last, and how they end."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from flows.elicitation.run import Called
from flows.elicitation.states import Asked, Elicitation, Status, fall_due
from flows.elicitation.traits import OnPage
from flows.errors import Declined
from flows.kinds.gate import Gate, gate_question
from flows.question import asking
from tests.support.clock import Clock
from tests.support.mcp_server import eventually
from tests.support.service_env import Holding, call_of, process
from webapp.calls.call import Call
from webapp.calls.verbs import Verbs
from webapp.cli.approvals import clear_approvals, list_approvals, revoke_approval
from webapp.cli.table import lines_of
from webapp.command import CommandRefused
from webapp.records.values import Approval
from webapp.service import Service
from webapp.stores.sqlite import MemoryStore

FIVE = {"count": 5}


@pytest.fixture
async def service(clock: Clock) -> AsyncIterator[Service]:
    async with process(MemoryStore(), clock) as service:
        yield service


async def passes(call: Call, *, tool: str = "t") -> None:
    """Ask the gate's question before the body, as the middleware does."""
    call.begin()
    with asking(Verbs(call)):
        await gate_question(
            Gate(),
            tool=tool,
            arguments=call.tool.arguments,
            shown=json.loads(call.tool.arguments),
            can_be_stored=True,
        )


@asynccontextmanager
async def at_the_gate(
    service: Service, arguments: object = FIVE, **about: Any
) -> AsyncIterator[tuple[asyncio.Task[None], Elicitation]]:
    """Yield a call that waits for its approval."""
    presenter = Holding()
    call = call_of(service, presenter=presenter, arguments=arguments, **about)
    task = asyncio.create_task(passes(call))
    await eventually(lambda: presenter.holds is not None or task.done())
    assert presenter.shown is not None
    yield task, presenter.shown.elicitation
    await asyncio.gather(task, return_exceptions=True)
    await call.finish(lambda: json.dumps({}))
    await call.delivered()


async def approved(
    service: Service,
    arguments: object = FIVE,
    *,
    is_wide: bool = False,
    is_for_all: bool = False,
    **about: Any,
) -> None:
    async with at_the_gate(service, arguments, **about) as (task, asked):
        given = {"remember": is_wide, "all_clients": is_for_all}
        ticks = [name for name, is_ticked in given.items() if is_ticked]
        await service.kinds.gates.complete(asked, {}, OnPage(), ticks=ticks)
        await task


async def is_asked(service: Service, arguments: object = FIVE, **about: Any) -> bool:
    """Return True if a call with these arguments asks for an approval. Decline its question."""
    presenter = Holding()
    call = call_of(service, presenter=presenter, arguments=arguments, **about)
    task = asyncio.create_task(passes(call))
    await eventually(lambda: presenter.holds is not None or task.done())
    if presenter.shown is not None:
        await service.elicitations.settle(presenter.shown.elicitation.id, Status.DECLINED)
    is_declined = isinstance((await asyncio.gather(task, return_exceptions=True))[0], Declined)
    await call.finish(lambda: json.dumps({}))
    await call.delivered()
    return is_declined


async def test_approval_covers_same_call_for_fifteen_minutes(
    service: Service, clock: Clock
) -> None:
    await approved(service)
    clock.tick(minutes=14, seconds=59)
    assert not await is_asked(service)
    clock.tick(seconds=2)
    assert await is_asked(service)


async def test_approval_covers_no_other_arguments_tool_or_person(service: Service) -> None:
    await approved(service)
    assert await is_asked(service, {"count": 6})
    assert await is_asked(service, tool="other")
    assert await is_asked(service, subject="bob")
    assert not await is_asked(service)


async def test_wide_approval_covers_any_arguments_of_same_tool_for_an_hour(
    service: Service, clock: Clock
) -> None:
    await approved(service, is_wide=True)
    assert not await is_asked(service, {"count": 6})
    assert await is_asked(service, {"count": 6}, tool="other")
    assert await is_asked(service, {"count": 6}, subject="bob")
    clock.tick(minutes=59)
    assert not await is_asked(service, {"count": 7})
    clock.tick(minutes=2)
    assert await is_asked(service, {"count": 7})


async def test_approval_is_limited_to_client_which_asked(service: Service) -> None:
    # finding: S11
    await approved(service, client_id="one", client="Claude")
    assert await is_asked(service, client_id="two", client="Claude")
    assert await is_asked(service, client="Claude"), "a client name does not replace a client id"
    assert await is_asked(service, client="one"), "a client id is not accepted as a client name"
    assert not await is_asked(service, client_id="one", client="Claude 2")
    await approved(service, is_wide=True, client="by name")
    assert not await is_asked(service, {"count": 6}, client="by name")
    for other in ("by name ", "By name", "", "id:one"):
        assert await is_asked(service, {"count": 6}, client=other), other


async def test_approval_for_all_clients_covers_all_clients_of_same_person(
    service: Service,
) -> None:
    # finding: S11
    await approved(service, is_for_all=True, client_id="one")
    assert not await is_asked(service, client_id="two")
    assert not await is_asked(service, client="by name")
    assert await is_asked(service, client_id="two", subject="bob")
    assert await is_asked(service, {"count": 6}, client_id="two"), (
        "an approval for all clients does not cover other arguments"
    )
    await approved(service, {"count": 6}, is_for_all=True, is_wide=True, client_id="one")
    assert not await is_asked(service, {"count": 7}, client_id="two")
    await service.kinds.gates.approvals.clear()
    assert await is_asked(service, client_id="one")


async def test_approval_stored_without_client_by_earlier_version_covers_nothing(
    service: Service,
) -> None:
    # finding: S11
    await approved(service)
    (given,) = await service.kinds.gates.approvals.all()
    former = msgspec.to_builtins(given)
    del former["client"], former["is_for_all"]
    old = msgspec.convert(former, Approval)
    await service.elicitations.write(old)
    assert not await service.kinds.gates.approvals.all()
    assert (await list_approvals(service)).rows == []


async def test_list_of_approvals_names_client(service: Service) -> None:
    # finding: S11
    await approved(service, client_id="https://one.example/")
    await approved(service, client="Clau\x1bde", tool="by name")
    await approved(service, is_for_all=True, tool="all")
    table = await list_approvals(service)
    assert {row.tool: (row.client, row.is_client_verified) for row in table.rows} == {
        "t": ("https://one.example/", True),
        "by name": ("Clau\x1bde", False),
        "all": (None, False),
    }
    text = "\n".join(lines_of(table, width=200, now=service.clock()))
    assert re.search(r"  Clau\ufffdde +no  ", text)


async def test_approval_covers_no_other_version_of_tool(service: Service) -> None:
    await approved(service)
    assert await is_asked(service, version="1.0"), (
        "an approval of a tool without a version does not cover version 1.0"
    )
    await approved(service, version="2.0", is_wide=True)
    assert not await is_asked(service, {"count": 6}, version="2.0")
    assert await is_asked(service, {"count": 6}, version="1.0")
    assert await is_asked(service, {"count": 6})
    about = {one.about for one in await service.kinds.gates.approvals.all()}
    assert about == {"count: 5", "version 2.0, whatever it is given"}


def test_records_stored_without_version_are_readable() -> None:
    called = {"server": "s", "tool": "t", "client": "c", "arguments": "{}"}
    assert msgspec.convert(called, Called).version is None
    asked = {"server": "s", "tool": "t", "client": "c", "message": "m", "digest": "d"}
    assert msgspec.convert(asked, Asked).version is None
    assert msgspec.convert(asked, Asked).client_id is None


async def test_decline_is_not_remembered(service: Service) -> None:
    assert await is_asked(service)
    assert await is_asked(service)
    assert not await service.kinds.gates.approvals.all()


async def test_approval_is_stored_only_with_acceptance(service: Service, clock: Clock) -> None:
    async with at_the_gate(service) as (_, asked):
        await service.elicitations.settle(asked.id, Status.DECLINED)
        ended = await service.kinds.gates.complete(asked, {}, OnPage(), ticks={"remember"})
        assert ended.status is Status.DECLINED
    async with at_the_gate(service) as (_, asked):
        clock.tick(minutes=6)
        ended = await service.kinds.gates.complete(asked, {}, OnPage())
        assert ended.status is Status.EXPIRED
    assert not await service.elicitations.store.list("approval")


async def test_request_after_end_of_approval_asks_again(service: Service, clock: Clock) -> None:
    await approved(service)
    clock.tick(minutes=14)
    again = call_of(service, arguments=FIVE)
    await passes(again)
    run = await again.run.begin()  # as if the tool had asked a question
    await again.finish()
    clock.tick(minutes=5)
    assert await is_asked(service, run_id=run.id)


async def test_approved_call_stays_approved_after_content_is_wiped(
    service: Service, clock: Clock
) -> None:
    presenter = Holding()
    call = call_of(service, presenter=presenter, arguments=FIVE)
    task = asyncio.create_task(passes(call))
    await eventually(lambda: presenter.holds is not None)
    assert presenter.shown is not None
    asked = presenter.shown.elicitation
    await service.kinds.gates.complete(asked, {}, OnPage())
    await task
    run_id = call.run.value.id
    await call.run.keep_open()
    await call.finish()  # only this request ends: the call still waits for a person
    for _ in range(3):
        clock.tick(minutes=3)
        await service.elicitations.change(asked.id, lambda e: fall_due(e, now=clock()))
        again = call_of(service, arguments=FIVE, run_id=run_id)
        await passes(again)
        await again.run.keep_open()
        await again.finish()
    assert len(await service.elicitations.store.list("elicitation")) == 1
    await service.kinds.gates.approvals.clear()
    assert await is_asked(service, run_id=run_id), (
        "after the approvals are cleared, the call asks again"
    )


async def test_approval_is_reused_without_question_after_crash_and_lease(
    clock: Clock,
) -> None:
    store = MemoryStore()
    async with process(store, clock) as before:
        presenter = Holding()
        call = call_of(before, presenter=presenter, arguments=FIVE)
        task = asyncio.create_task(passes(call))
        await eventually(lambda: presenter.holds is not None)
        assert presenter.shown is not None
        await before.kinds.gates.complete(presenter.shown.elicitation, {}, OnPage())
        await task  # the body runs, and the process dies while it does
    async with process(store.sibling(), clock) as after:
        clock.tick(seconds=31)
        again = call_of(after, arguments=FIVE, run_id=call.run.value.id)
        await passes(again)
        assert again.used.has_claimed
        assert len(await after.elicitations.store.list("elicitation")) == 1
        await again.finish(lambda: json.dumps({}))


async def test_approvals_are_listed_by_owner_revoked_and_cleared(service: Service) -> None:
    approvals = service.kinds.gates.approvals
    await approved(service)
    await approved(service, {"count": 6})
    await approved(service, subject="bob")
    alice, bob = (
        service.elicitations.owners.tag(issuer="tests", subject=subject)
        for subject in ("alice", "bob")
    )
    assert len(await approvals.all()) == 3
    six, five = sorted(await approvals.all(owner=alice), key=lambda one: one.about, reverse=True)
    assert (six.about, five.about) == ("count: 6", "count: 5")
    assert not await approvals.revoke(five.id, owner=bob), (
        "another owner cannot revoke the approval by its id"
    )
    assert await approvals.revoke(five.id, owner=alice)
    assert not await approvals.revoke(five.id, owner=alice), (
        "a revoked approval cannot be revoked again"
    )
    assert await is_asked(service)
    assert not await is_asked(service, {"count": 6})
    assert await approvals.clear(owner=alice) == 1
    assert await is_asked(service, {"count": 6})
    assert not await is_asked(service, subject="bob")
    assert await approvals.clear() == 1
    assert await is_asked(service, subject="bob")


async def test_revoked_approval_can_be_given_again(service: Service) -> None:
    await approved(service)
    await service.kinds.gates.approvals.clear()
    await approved(service)
    assert not await is_asked(service)
    assert len(await service.elicitations.store.list("approval")) == 1


async def test_two_processes_writing_same_approval_create_single_row(
    here: Service, there: Service
) -> None:
    async with (
        at_the_gate(here) as (one, asked),
        at_the_gate(there, {"count": 6}) as (other, asked_there),
    ):
        await asyncio.gather(
            here.kinds.gates.complete(asked, {}, OnPage(), ticks={"remember"}),
            there.kinds.gates.complete(asked_there, {}, OnPage(), ticks={"remember"}),
        )
        await one
        await other
    assert len(await here.kinds.gates.approvals.all()) == 1


async def test_open_questions_are_listed_by_owner(service: Service) -> None:
    # parity: T6
    alice, bob = (
        service.elicitations.owners.tag(issuer="tests", subject=subject)
        for subject in ("alice", "bob")
    )
    async with at_the_gate(service) as (_, asked):
        assert [
            one.id for one in await service.elicitations.rows.open_of(alice, now=service.clock())
        ] == [asked.id]
        assert not await service.elicitations.rows.open_of(bob, now=service.clock())
        async with at_the_gate(service, subject="bob") as (_, his):
            assert {
                one.id for one in await service.elicitations.rows.open_of(now=service.clock())
            } == {asked.id, his.id}
            await service.kinds.gates.complete(his, {}, OnPage())
        await service.kinds.gates.complete(asked, {}, OnPage())
    assert not await service.elicitations.rows.open_of(alice, now=service.clock())


async def test_operator_lists_and_revokes_approvals(service: Service) -> None:
    await approved(service, {"what": "\x1b[2J\u202e" + "x" * 90})
    await approved(service, is_wide=True, tool="other")
    table = await list_approvals(service)
    lines = lines_of(table, width=120, now=service.clock())
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)
    rows = {row.tool: row for row in table.rows}
    assert (rows["other"].arguments, rows["other"].server) == (None, "s")
    assert rows["other"].expires_at == service.clock() + timedelta(hours=1)
    assert "x" * 90 in str(rows["t"].arguments)
    assert rows["t"].expires_at == service.clock() + timedelta(minutes=15)
    with pytest.raises(CommandRefused):
        await revoke_approval(service, "x" * 24)
    assert await revoke_approval(service, table.rows[0].id[:20]) == [
        "The approval is revoked: the next call asks again."
    ]
    assert await clear_approvals(service) == ["1 is revoked: the next calls ask again."]
    assert await clear_approvals(service) == ["Nothing is approved."]
    assert (await list_approvals(service)).rows == []


async def test_repr_of_approval_does_not_show_arguments(service: Service) -> None:
    await approved(service, {"word": "confidential"})
    (approval,) = await service.kinds.gates.approvals.all()
    assert isinstance(approval, Approval)
    assert "confidential" not in repr(approval)


async def test_revoked_approval_starts_no_second_body_while_first_runs(
    service: Service,
) -> None:
    presenter = Holding()
    first = call_of(service, presenter=presenter, arguments=FIVE)
    task = asyncio.create_task(passes(first))
    await eventually(lambda: presenter.holds is not None)
    assert presenter.shown is not None
    await service.kinds.gates.complete(presenter.shown.elicitation, {}, OnPage())
    await task  # the body starts here
    await service.kinds.gates.approvals.clear()
    again = Holding()
    second = call_of(service, presenter=again, arguments=FIVE, run_id=first.run.value.id)
    other = asyncio.create_task(passes(second))
    for _ in range(300):
        await asyncio.sleep(0)
    assert again.shown is None
    assert not other.done()
    other.cancel()
    await asyncio.gather(other, return_exceptions=True)
    await first.finish(lambda: "{}")
    await second.finish(lambda: "{}")


async def test_log_records_given_and_revoked_approvals(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    # finding: S26
    caplog.set_level(logging.INFO, logger="webapp")
    async with at_the_gate(service) as (_, asked):
        for _ in range(2):
            await service.kinds.gates.complete(asked, {}, OnPage(), ticks={"remember"})
    for _ in range(2):
        await service.kinds.gates.approvals.clear()
    given, revoked = [
        {name: vars(one).get(name) for name in ("message", "id", "tool", "is_wide", "is_for_all")}
        for one in caplog.records
        if one.name in ("webapp.kinds.gate", "webapp.kinds.approvals")
    ]
    assert given == {
        "message": "approval.given",
        "id": asked.id,
        "tool": "t",
        "is_wide": True,
        "is_for_all": False,
    }
    assert (revoked["message"], revoked["tool"]) == ("approval.revoked", "t")
