"""The sample node of docs/how-to/client.md: `python -m tests.frameworks.graph URL KEY`.

The process runs the node in a graph. It waits for a line on standard input before each resume, and
prints one JSON object for each run: the link of the interrupt, or the result of the node.
"""

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command

from flows import elicit
from webapp.client import Elicit

FRAMEWORKS = "\n## Agent frameworks\n"
_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "client.md"
_SAMPLE = re.compile(r"^```python\n([^`]*?from langgraph.*?)^```$", re.DOTALL | re.MULTILINE)


class State(TypedDict, total=False):
    user: str
    order: str
    sent_to: str | None


async def run(url: str, key: str) -> None:
    (sample,) = _SAMPLE.findall(_PAGE.read_text("utf-8").partition(FRAMEWORKS)[0])
    names: dict[str, Any] = {"Elicit": Elicit, "elicit": elicit, "KEY": key}
    exec(sample.replace("https://elicit.example", url), names)  # noqa: S102 - what a reader copies
    graph = StateGraph(State)
    graph.add_node("approve", names["approve"])
    graph.add_edge(START, "approve")
    compiled = graph.compile(checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "1"}}
    given: Any = {"user": "ann", "order": "order 8"}
    while True:
        state = await compiled.ainvoke(given, config)
        interrupts = state.get("__interrupt__")
        reported = interrupts[0].value if interrupts else {"sent_to": state["sent_to"]}
        print(json.dumps(reported), flush=True)  # noqa: T201 - its result
        if not interrupts:
            return
        await asyncio.to_thread(sys.stdin.readline)
        given = Command(resume="go on")


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
