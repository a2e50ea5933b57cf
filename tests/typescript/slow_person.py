"""`python -m tests.typescript.slow_person [--seconds 90]`: a person who takes their time.

The official TypeScript clients with their defaults (a request may last 60 s), on each revision,
call a tool that needs a payment, and repeat the call while the result says "still waiting". The
script uses real time, so run it manually. tests/typescript/test_clients.py tests the same quickly.
"""

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from pathlib import Path

import httpx

from tests.support.cli import run, serving
from tests.typescript.env import CLIENTS, URL, Official, calling, text_of
from tests.typescript.packages import FOR_CLIENTS, install
from webapp.demo.walker import walk

CALLS_AT_MOST = 20
_TOOLS = """
import os
from flows import Money, elicit
from mcp.server.mcpserver import MCPServer

mcp = MCPServer("slow shop")


def note(word: str) -> None:
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(word + "\\n")


@mcp.tool(structured_output=False)
async def buy(what: str) -> str:
    note(f"{what} before")
    receipt = await elicit.payment(Money("9.00", "EUR"), what)
    note(f"{what} behind")
    return f"{what} is paid: {receipt.price}"
"""


async def try_it(official: Official, node: str, *, seconds: float, home: Path) -> str:
    """Return the result of one purchase, as a line."""
    (home / "slow_tools.py").write_text(_TOOLS)
    notes, what = home / "notes", "tea"
    extra = {"NOTES": str(notes)}
    async with (
        serving("slow_tools:mcp", "--sandbox", home=home, extra=extra) as server,
        httpx.AsyncClient() as browser,
        calling(
            node, official, f"{server.url}/mcp", declares=URL, patience_seconds=seconds + 60
        ) as caller,
        asyncio.TaskGroup() as people,
    ):
        sandbox = (await browser.get(f"{server.url}/health")).json()["sandbox"]

        async def person(link: str) -> None:
            await asyncio.sleep(seconds)
            await walk(browser, link, answers={}, also=[sandbox], say=lambda _: None)

        result, links, calls = "", 0, 0
        while not result and calls < CALLS_AT_MOST:
            calls += 1
            caller.begin("buy", what=what)
            while "asked" in (message := await caller.next_message()):
                links += 1
                if links == 1:
                    people.create_task(person(message["asked"]["url"]))
            assert "result" in message, message
            text = text_of(message["result"])
            result = "" if text.startswith("Still waiting") else text
        paid = (await run("payments", "list", home=home)).out.count("9.00")
    ran = Counter(line.split()[1] for line in notes.read_text().splitlines())
    return (
        f"{official!s:18} {result!r} by {calls} calls of the model's, {links} links shown, "
        f"{paid} charges; before the await: {ran['before']}, behind it: {ran['behind']}"
    )


async def main(*, seconds: float) -> None:
    node = install(FOR_CLIENTS)
    for official in CLIENTS:
        with tempfile.TemporaryDirectory() as folder:
            line = await try_it(official, node, seconds=seconds, home=Path(folder))
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=90.0)
    asyncio.run(main(seconds=parser.parse_args().seconds))
