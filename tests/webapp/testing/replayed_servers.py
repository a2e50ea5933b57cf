"""Three tools that repeat a side effect after each question, and a correct version of each.

The tests of replay mode count the payments, the held seats and the counted calls.
"""

from pathlib import Path
from typing import Any

from flows import Money, elicit
from tests.support.mcp_server import new_server

ITEMS = range(4)
TEA = Money("9.00", "EUR")
paid: list[int] = []
held: set[str] = set()
releases: list[str] = []


class Statistics:
    calls = 0

    def __init__(self) -> None:
        self.count = 0


statistics = Statistics()


def clear() -> None:
    paid.clear()
    held.clear()
    releases.clear()
    statistics.count = 0


def pay_out(item: int) -> int:
    paid.append(item)
    return item


def new_tools(library: str, folder: Path) -> Any:
    server = new_server(library)
    plant(server, folder / "journal.txt")
    correct(server, folder / "journal.txt")
    return server


def plant(server: Any, journal: Path) -> None:
    @server.tool()
    async def pay_all() -> str:
        for item in ITEMS:
            if await elicit.confirm(f"Pay {item}?"):
                pay_out(item)
        return f"{len(paid)} payments"

    @server.tool()
    async def hold_seat() -> str:
        held.add("4A")
        try:
            await elicit.payment(TEA, "Seat 4A")
            return "sold"
        finally:
            held.discard("4A")
            releases.append("4A")

    @server.tool()
    async def count_calls() -> str:
        statistics.count += 1
        with journal.open("a") as file:
            file.write("called\n")
        name = await elicit.form("Who are you?")
        return f"{name} {statistics.count}"


def correct(server: Any, journal: Path) -> None:
    @server.tool()
    async def pay_each_once() -> str:
        for item in ITEMS:
            if await elicit.confirm(f"Pay {item}?"):
                await elicit.once("pay", lambda: pay_out(item), key=item)  # noqa: B023 - awaited
        return f"{len(paid)} payments"

    @server.tool()
    async def sell_seat() -> str:
        await elicit.payment(TEA, "Seat 4A")
        await elicit.once("sell", lambda: held.add("4A"))
        return "sold"

    @server.tool()
    async def count_answers() -> str:
        name = await elicit.form("Who are you?")
        statistics.count += 1
        with journal.open("a") as file:
            file.write("called\n")
        return f"{name} {statistics.count}"
