"""Callbacks of `on_end`: they run once when a call has ended for good, and learn how it ended."""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from types import ModuleType
from typing import Any

import pytest
from msgspec.structs import replace

from flows import Ending, HowEnded, Money, NotAccepted, elicit
from flows.elicitation.ending import EndingCallback
from tests.support.mcp_server import link_in
from tests.support.samples import FILES
from tests.support.ways import protocol
from webapp.calls.endings import Endings
from webapp.testing import elicit_person

WAYS = {"url": ("form", "url"), "nothing": ()}
SEAT = Money("25.00", "EUR")
endings_seen: list[Ending] = []
held: dict[str, str] = {}  # stands for the author's own table of seats
failing: list[Exception] = []
during: list[Callable[[], Awaitable[None]]] = []  # called while the callback runs


@pytest.fixture(autouse=True)
def _empty() -> None:
    endings_seen.clear()
    held.clear()
    failing.clear()


async def release_seat(ending: Ending) -> None:
    if failing:
        raise failing.pop(0)
    while during:
        await during.pop()()
    endings_seen.append(ending)
    if held.get(str(ending.key)) == "held":
        held[str(ending.key)] = "free"


def release_in_thread(ending: Ending) -> None:
    endings_seen.append(ending)


async def ask_again(ending: Ending) -> None:
    endings_seen.append(ending)
    try:
        await elicit.confirm("Sure?")
    except Exception as error:
        held["error"] = str(error)
        raise


async def yields(ending: Ending) -> AsyncIterator[None]:
    yield


class Seats:
    async def release(self, ending: Ending) -> None:
        endings_seen.append(ending)


def seller(server: Any, **options: Any) -> Any:
    """Add a tool that holds a seat while the person pays."""

    @server.tool()
    async def book_seat(seat: str) -> str:
        await elicit.on_end(release_seat, {"seat": seat}, key=seat)

        async def hold() -> None:
            held[seat] = "held"

        await elicit.once("hold", hold)
        receipt = await elicit.payment(SEAT, f"Seat {seat}", **options)
        held[seat] = "sold"
        return f"{seat} for {receipt.price}"

    return server


def hows() -> list[str]:
    return [ending.how.value for ending in endings_seen]


@pytest.mark.every_way
@pytest.mark.parametrize("way", WAYS)
async def test_seat_is_released_if_person_never_answers(server, revision, way):
    # finding: XA1
    asked = elicit_person(seller(server), revision=protocol(revision), declares=WAYS[way])
    async with asked as person:
        person.never_comes()
        await person.call("book_seat", seat="14")
        await person.let_pass(minutes=25)
        assert hows() == ["expired"]
        assert held == {"14": "free"}
        await person.let_pass(days=3)
        assert hows() == ["expired"]
        assert person.endings == tuple(endings_seen)
    (ending,) = endings_seen
    assert (ending.key, ending.payload, ending.tool) == ("14", {"seat": "14"}, "book_seat")


@pytest.mark.every_way
@pytest.mark.parametrize("way", WAYS)
async def test_documented_seat_is_released_and_sold(library, revision, way, monkeypatch):
    # finding: XA1
    text = FILES["seats.py"]
    if library == "fastmcp":
        text = text.replace("mcp.server.mcpserver import MCPServer", "fastmcp import FastMCP")
        text = text.replace("MCPServer(", "FastMCP(")
    seats = ModuleType("seats")
    monkeypatch.setitem(sys.modules, "seats", seats)
    exec(text, vars(seats))  # noqa: S102 - it is our own
    asked = elicit_person(seats.mcp, revision=protocol(revision), declares=WAYS[way])
    async with asked as person:
        person.never_comes()
        await person.call("book_seat", seat=14)
        assert not seats.sold
        await person.let_pass(minutes=25)
        assert not seats.held
        person.pays()
        assert "is yours" in (await person.call("book_seat", seat=14)).text
        assert list(seats.held) == [*seats.sold] == [14]
        assert [one.how for one in person.endings] == ["expired", "delivered"]
        assert "Somebody else" in (await person.call("book_seat", seat="14")).text


@pytest.mark.every_way
@pytest.mark.parametrize("way", WAYS)
async def test_delivered_result_ends_the_call_once(server, revision, way):
    # finding: XA1
    asked = elicit_person(seller(server), revision=protocol(revision), declares=WAYS[way])
    async with asked as person:
        person.pays()
        assert (await person.call("book_seat", seat="14")).text == "14 for 25.00 EUR"
        assert hows() == ["delivered"]
        assert held == {"14": "sold"}
        await person.call("book_seat", seat="14")  # the same result again
        await person.let_pass(days=3)
        assert hows() == ["delivered"]


@pytest.mark.every_way
@pytest.mark.parametrize("way", WAYS)
async def test_declined_payment_ends_the_call_as_declined(server, revision, way):
    # finding: XA1
    asked = elicit_person(seller(server), revision=protocol(revision), declares=WAYS[way])
    async with asked as person:
        person.declines()
        assert (await person.call("book_seat", seat="14")).is_error
        assert hows() == ["declined"]
        assert held == {"14": "free"}
        person.pays()  # the same call is a new call, with a callback of its own
        await person.call("book_seat", seat="14")
        assert hows() == ["declined", "delivered"]
        assert held == {"14": "sold"}
    assert len({ending.idempotency_key for ending in endings_seen}) == 2


async def test_undelivered_paid_call_is_abandoned(server, revision):
    # finding: XA1
    async with elicit_person(seller(server), revision=protocol(revision), declares=()) as person:
        person.pays()
        result = await person.client.call_tool("book_seat", {"seat": "14"})
        assert await person.follows(link_in(result))
        await person.let_pass(minutes=45)  # the client never asks for the result
        assert hows() == ["abandoned"]


async def test_refund_before_the_result_ends_the_call_as_refunded(server, revision):
    # finding: XA1
    @server.tool()
    async def change_their_mind() -> str:
        receipt = await elicit.payment(SEAT, "Seat 14")
        await elicit.on_end(release_in_thread, key=14)
        await receipt.refund(reason="sold out")
        return "refunded"

    @server.tool()
    async def sold_out() -> str:
        await elicit.on_end(release_in_thread, key=15)
        receipt = await elicit.payment(SEAT, "Seat 15")
        await receipt.refund(reason="sold out")
        return "refunded"

    async with elicit_person(server, revision=protocol(revision)) as person:
        person.pays()
        await person.call("sold_out")
        assert hows() == ["refunded"]
        person.pays()
        await person.call("change_their_mind")
        assert hows() == ["refunded", "delivered"]  # only questions after on_end count
        assert [ending.key for ending in endings_seen] == [15, 14]


async def test_refusal_that_the_tool_handles_is_no_delivery(server, revision):
    # finding: XA1
    @server.tool()
    async def offer(seat: str) -> str:
        await elicit.on_end(release_seat, key=seat)
        try:
            await elicit.payment(SEAT, "Seat")
        except NotAccepted:
            return "Perhaps another day."
        if not await elicit.confirm("May we send news?"):
            return "sold, no news"
        return "sold"

    @server.tool()
    async def fail(seat: str) -> str:
        await elicit.on_end(release_seat, key=seat)
        if await elicit.confirm("Go on?"):
            raise RuntimeError("the till is broken")
        return "no"

    async with elicit_person(server, revision=protocol(revision)) as person:
        person.declines()
        assert not (await person.call("offer", seat="1")).is_error
        person.pays()
        person.declines()
        assert (await person.call("offer", seat="2")).text == "sold, no news"
        person.accepts()
        assert (await person.call("fail", seat="3")).is_error
        assert [(ending.key, ending.how) for ending in endings_seen] == [
            ("1", HowEnded.DECLINED),
            ("2", HowEnded.DELIVERED),
            ("3", HowEnded.FAILED),
        ]


async def test_call_without_a_question_ends_too(server, revision):
    @server.tool()
    async def look() -> str:
        await elicit.on_end(release_in_thread, key="a")
        await elicit.on_end(release_in_thread, key="a")
        await elicit.on_end(release_in_thread, key="b")
        return "looked"

    async with elicit_person(server, revision=protocol(revision)) as person:
        await person.call("look")
        await person.call("look")
        assert Counter((ending.how.value, ending.key) for ending in endings_seen) == {
            ("delivered", "a"): 2,
            ("delivered", "b"): 2,
        }


async def test_failed_callback_runs_again_with_its_key(server, revision):
    # finding: XA1
    failing.extend([OSError("the table is locked"), OSError("still locked")])
    async with elicit_person(seller(server), revision=protocol(revision)) as person:
        person.declines()
        await person.call("book_seat", seat="14")
        assert endings_seen == []
        await person.let_pass(seconds=4)
        assert len(person.endings) == 1  # the second attempt is not due yet
        await person.let_pass(seconds=2)
        await person.let_pass(seconds=11)
        await person.let_pass(days=1)
        assert hows() == ["declined"]
        assert [one.attempt for one in person.endings] == [1, 2, 3]
        assert len({one.idempotency_key for one in person.endings}) == 1


async def test_callback_that_asks_is_refused(server, revision):
    # finding: XA1
    @server.tool()
    async def look() -> str:
        await elicit.on_end(ask_again, key="a")
        return "looked"

    async with elicit_person(server, revision=protocol(revision)) as person:
        await person.call("look")
        assert "callback of on_end cannot ask" in held["error"]
        assert person.asked == ()


@pytest.mark.parametrize(
    ("callback", "says"),
    [
        (lambda _: None, "a lambda"),
        (Seats().release, "Seats.release"),
        ("release_seat", "must be"),
        (yields, "yields contains `yield`"),
        (None, "must be"),
    ],
)
async def test_callback_that_no_other_process_finds_is_refused(server, callback, says):
    # finding: XA1
    @server.tool()
    async def book() -> str:
        await elicit.on_end(callback, key="a")
        return "booked"

    async with elicit_person(server) as person:
        result = await person.call("book")
        assert result.code == "ELICITATION_INVALID_USE"
        assert says in result.text
        assert "test_endings.py:" in result.text


async def test_nested_function_and_wrong_signature_are_refused(server):
    # finding: XA1
    @server.tool()
    async def nested() -> str:
        async def release(ending: Ending) -> None: ...

        await elicit.on_end(release, key="a")
        return "booked"

    @server.tool()
    async def no_argument() -> str:
        await elicit.on_end(hows, key="a")  # type: ignore[arg-type]
        return "booked"

    async with elicit_person(server) as person:
        assert "another process could not find" in (await person.call("nested")).text
        assert "must take one argument" in (await person.call("no_argument")).text


async def test_misused_registration_is_refused_and_names_the_line(  # noqa: C901 - a tool each
    server, revision
):
    # finding: XA1
    payloads = iter([{"try": 1}, {"try": 2}])

    @server.tool()
    async def twice() -> str:
        await elicit.on_end(release_seat, next(payloads), key="a")
        await elicit.on_end(release_seat, next(payloads), key="a")
        return "booked"

    @server.tool()
    async def other() -> str:
        await elicit.on_end(release_seat, key="a")
        await elicit.on_end(release_in_thread, key="a")
        return "booked"

    @server.tool()
    async def huge() -> str:
        await elicit.on_end(release_seat, "x" * 9000, key="a")
        return "booked"

    @server.tool()
    async def not_json() -> str:
        await elicit.on_end(release_seat, object(), key="a")  # type: ignore[arg-type]
        return "booked"

    @server.tool()
    async def no_key() -> str:
        await elicit.on_end(release_seat, key="")
        return "booked"

    @server.tool()
    async def many() -> str:
        for seat in range(51):
            await elicit.on_end(release_seat, key=seat)
        return "booked"

    @server.tool()
    async def inside() -> str:
        async def hold() -> None:
            await elicit.on_end(release_seat, key="a")

        await elicit.once("hold", hold)
        return "booked"

    says = {
        "twice": "another payload",
        "other": "its own key",
        "huge": "9002 characters",
        "not_json": "not JSON",
        "no_key": "1 to 255",
        "many": "50 callbacks",
        "inside": "in the work of `once`",
    }
    async with elicit_person(server, revision=protocol(revision)) as person:
        for tool, why in says.items():
            result = await person.call(tool)
            assert result.code == "ELICITATION_INVALID_USE", result.text
            assert why in result.text
            assert "test_endings.py:" in result.text


async def test_callback_of_a_call_that_still_runs_waits_for_its_end(server, revision):
    # finding: XA1
    may_go_on, is_held = asyncio.Event(), asyncio.Event()

    @server.tool()
    async def slow() -> str:
        await elicit.on_end(release_in_thread, key="a")
        is_held.set()
        await may_go_on.wait()
        return "done"

    async with elicit_person(server, revision=protocol(revision)) as person:
        calling = asyncio.create_task(person.call("slow"))
        await is_held.wait()
        for _ in range(6):
            await person.let_pass(minutes=5)
            await person._app.service.running_tools.renew()  # runs every ten seconds
        assert endings_seen == []
        may_go_on.set()
        assert (await calling).text == "done"
        assert hows() == ["delivered"]


async def test_missing_callback_is_logged_and_runs_when_it_exists_again(server, revision, caplog):
    # finding: XA1
    async with elicit_person(seller(server), revision=protocol(revision)) as person:
        service = person._app.service
        servers, service.endings.servers = service.endings.servers, ()
        person.declines()
        await person.call("book_seat", seat="14")
        await person.let_pass(seconds=6)
        assert endings_seen == []
        assert "callback_missing" not in caplog.text  # it belongs to another server
        service.endings.servers = servers
        function = globals().pop("release_seat")
        try:
            await person.let_pass(seconds=61)
            assert endings_seen == []
            (record,) = [one for one in caplog.records if one.msg == "ending.callback_missing"]
            assert record.callback.endswith("test_endings:release_seat")
        finally:
            globals()["release_seat"] = function
        await person.let_pass(seconds=61)
        assert hows() == ["declined"]


async def test_two_processes_run_a_callback_once(server):
    # finding: XA1
    async with elicit_person(seller(server)) as person:
        service = person._app.service
        servers, service.endings.servers = service.endings.servers, ()
        person.declines()
        await person.call("book_seat", seat="14")
        service.endings.servers = servers
        (record,) = await service.elicitations.store.list("ending", status="due")
        row = await service.elicitations.rows.open(record, EndingCallback)
        other = Endings(service.elicitations, kinds=service.kinds, completing=service.completing)
        other.servers = servers
        for endings in (service.endings, other):
            endings.after_write([row])
        await service.endings.settled()
        await other.settled()
        assert hows() == ["declined"]


async def test_callback_whose_run_was_lost_runs_as_abandoned(server):
    # finding: XA1
    async with elicit_person(seller(server), declares=()) as person:
        store = person._app.service.elicitations.store
        await person.client.call_tool("book_seat", {"seat": "14"})
        (run,) = await store.list("run")
        await store.write(replace(run, key=None, due_at=None, erase_at=person.clock()))
        await store.erase(before=person.clock())
        await person.let_pass(hours=23)
        assert endings_seen == []
        await person.let_pass(hours=2)  # the callback becomes due
        await person.let_pass(seconds=1)
        assert hows() == ["abandoned"]
        assert held == {"14": "free"}


async def test_callback_that_lost_its_claim_while_running_is_not_repeated(server):
    # finding: XA1
    async with elicit_person(seller(server)) as person:
        service = person._app.service

        async def lose_the_claim() -> None:
            (record,) = await service.elicitations.store.list("ending", status="due")
            row = await service.elicitations.rows.open(record, EndingCallback)
            await service.elicitations.rows.write(replace(row, tries=row.tries + 1))

        during.append(lose_the_claim)
        person.declines()
        await person.call("book_seat", seat="14")
        await person.let_pass(days=1)
        assert hows() == ["declined"]
