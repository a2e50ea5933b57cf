"""The sample node of docs/how-to/client.md, in a graph of the real LangGraph."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.frameworks.packages import packages_of
from tests.support.asking_env import AskingEnv, asking_env
from tests.support.cli import PROJECT
from tests.support.living import living
from tests.support.processes import error_of, start
from tests.support.runs_env import approve, fill, programs_at


@dataclass
class Graph:
    """A process that runs a graph. It prints the result of each run, and waits to be resumed."""

    process: asyncio.subprocess.Process
    here: AskingEnv

    async def output(self) -> dict[str, Any]:
        """Return the interrupt's value, or what the node returned."""
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), timeout=300)
        assert line, error_of(self.process)
        output: dict[str, Any] = json.loads(line)
        return output

    async def resumed(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        return await self.output()


@asynccontextmanager
async def graph() -> AsyncIterator[Graph]:
    async with living(asking_env()) as here, programs_at(here) as programs:
        process = await start(
            *(sys.executable, "-m", "tests.frameworks.graph", here.url, programs.key),
            name="langgraph",
            stdin=PIPE,
            cwd=PROJECT,
            env={**os.environ, "PYTHONPATH": packages_of("langchain")},
        )
        try:
            yield Graph(process, here)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def test_node_with_two_questions_ends_with_both_answers():
    # finding: XQ1
    async with graph() as at:
        first = await at.output()
        assert first["message"] == "Send the invoice?"
        await approve(await at.here.guest(), first["url"])
        second = await at.resumed()
        assert second["message"] == "To which address?"
        await fill(await at.here.guest(), second["url"])
        assert await at.resumed() == {"sent_to": "Lund"}


async def test_resume_before_the_answer_interrupts_again_with_the_open_link():
    # finding: XQ1
    async with graph() as at:
        first = again = await at.output()
        for _ in range(2):
            again = await at.resumed()
            assert again["message"] == first["message"]
        await approve(await at.here.guest(), again["url"])
        second = await at.resumed()
        assert second["message"] == "To which address?"
        await fill(await at.here.guest(), (await at.resumed())["url"])
        assert await at.resumed() == {"sent_to": "Lund"}


async def test_resume_after_question_expired_interrupts_with_new_link():
    # finding: XQ1
    async with graph() as at:
        first = await at.output()
        await at.here.pass_time(days=8)
        again = await at.resumed()
        assert again["message"] == first["message"]
        assert again["url"] != first["url"]
        await approve(await at.here.guest(), again["url"])
        assert (await at.resumed())["message"] == "To which address?"
