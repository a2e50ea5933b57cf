"""Runs of an agent: `python -m tests.frameworks.agents FRAMEWORK URL EARLY TOOL...`.

There is one run for each TOOL. The model calls the tool and follows the text that it receives: it
shows the person the link, and repeats the call after the person has answered. Before that, it
repeats the call EARLY times too early. The output has one line of JSON for each run: the text that
the model received from each call, how often the person was asked in the client, and the error that
ended the run, if any. Each process imports only one framework, because the frameworks need
different libraries.
"""

import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from webapp.demo.walker import walk

NAME = "Ann"
CALLS_AT_MOST = 8
_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "client.md"
_SAMPLE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"http://[^\s'\"\\,}]+/e/[^\s'\"\\,}]+")
# Texts of the server and of openai-agents itself that ask for another call.
_LATER = ("Another call is waiting", "Please try again")


@dataclass
class Play:
    """A simulated model that calls one tool, and the person to whom it shows links."""

    tool: str
    early: int
    results: list[str] = field(default_factory=list[str])
    asked: int = 0
    link: str | None = None

    async def calls_again(self, text: str) -> bool:
        """Record the tool's text, and return True if the model calls the tool again."""
        self.results.append(text)
        if (found := _LINK.search(text)) is not None:
            self.link = found[0]
        is_waiting = found is not None or any(words in text for words in _LATER)
        if not is_waiting or len(self.results) >= CALLS_AT_MOST:
            return False
        if len(self.results) > self.early and self.link is not None:
            async with httpx.AsyncClient() as browser:
                await walk(
                    browser, self.link, answers={"answer.response": NAME}, say=lambda _: None
                )
            self.link = None
        return True

    def fills(self, schema: Any) -> dict[str, Any]:
        """Return what the person types into a form of the client."""
        self.asked += 1
        properties = (schema or {}).get("properties", {})
        return {name: (asked.get("enum") or [NAME])[0] for name, asked in properties.items()}


def documented(number: int, url: str) -> Callable[..., Awaitable[str]]:
    """Return the function `run` of a sample in docs/how-to/client.md, as a reader would copy it."""
    text = _PAGE.read_text("utf-8").partition("\n## Agent frameworks\n")[2]
    sample = _SAMPLE.findall(text)[number]
    names: dict[str, Any] = {}
    exec(sample.replace("http://127.0.0.1:8765/mcp", url), names)  # noqa: S102 - what a reader copies
    run: Callable[..., Awaitable[str]] = names["run"]
    return run


async def langchain(url: str, play: Play) -> None:
    """Run LangChain's own adapter, in which each question interrupts the graph."""

    async def ask_user(request: Any) -> Any:
        return {"action": "accept", "content": play.fills(request.get("requested_schema"))}

    await documented(0, url)(_langchain_model(play), "go", ask_user)


async def langchain_mcp_adapters_asking(url: str, play: Play) -> None:
    from mcp.types import ElicitResult

    async def ask_user(_: Any, params: Any, __: Any) -> Any:
        content = play.fills(getattr(params, "requestedSchema", None))
        return ElicitResult(action="accept", content=content)

    await documented(1, url)(_langchain_model(play), "go", ask_user)


async def langchain_mcp_adapters(url: str, play: Play) -> None:
    from langchain.agents import create_agent
    from langchain_mcp_adapters.client import MultiServerMCPClient

    client = MultiServerMCPClient({"server": {"transport": "streamable_http", "url": url}})
    agent = create_agent(_langchain_model(play), await client.get_tools())
    await agent.ainvoke({"messages": [("user", "go")]})


def _langchain_model(play: Play) -> Any:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, ToolMessage
    from langchain_core.outputs import ChatGeneration, ChatResult

    class Model(BaseChatModel):  # type: ignore[misc]
        @property
        def _llm_type(self) -> str:
            return "played"

        def bind_tools(self, *_: Any, **__: Any) -> Any:
            return self

        def _generate(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

        async def _agenerate(self, messages: Any, *_: Any, **__: Any) -> Any:
            last = messages[-1]
            if isinstance(last, ToolMessage):
                assert last.status == "success", last
                if not await play.calls_again(str(last.text)):
                    return reply_of(AIMessage(content="end"))
            call = {"name": play.tool, "args": {"what": "tea"}, "id": f"call {len(messages)}"}
            return reply_of(AIMessage(content="", tool_calls=[call]))

    def reply_of(message: Any) -> Any:
        return ChatResult(generations=[ChatGeneration(message=message)])

    return Model()


async def pydantic_ai_asking(url: str, play: Play) -> None:
    await documented(2, url)(_pydantic_ai_model(play), "go", _fills(play))


async def pydantic_ai_asking_legacy(url: str, play: Play) -> None:
    await _pydantic_ai(url, play, mode="legacy", elicitation_handler=_fills(play))


async def pydantic_ai(url: str, play: Play) -> None:
    await _pydantic_ai(url, play)


async def pydantic_ai_legacy(url: str, play: Play) -> None:
    await _pydantic_ai(url, play, mode="legacy")


async def _pydantic_ai(url: str, play: Play, **options: Any) -> None:
    from fastmcp.client import Client
    from pydantic_ai import Agent
    from pydantic_ai.mcp import MCPToolset

    toolset = MCPToolset(Client(url, **options) if options else url)
    await Agent(_pydantic_ai_model(play), toolsets=[toolset]).run("go")


def _fills(play: Play) -> Any:
    async def ask_user(_: str, __: Any, params: Any, ___: Any) -> Any:
        return play.fills(getattr(params, "requested_schema", None))

    return ask_user


def _pydantic_ai_model(play: Play) -> Any:
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
    from pydantic_ai.models.function import FunctionModel

    async def model(messages: Any, _: Any) -> Any:
        for part in messages[-1].parts:
            if part.part_kind in ("tool-return", "retry-prompt"):
                assert isinstance(part, ToolReturnPart), part
                if not await play.calls_again(str(part.content)):
                    return ModelResponse(parts=[TextPart("end")])
        return ModelResponse(parts=[ToolCallPart(play.tool, {"what": "tea"})])

    return FunctionModel(model)


async def openai_agents_patient(url: str, play: Play) -> None:
    await documented(3, url)(_openai_model(play), "go")


async def openai_agents(url: str, play: Play) -> None:
    from agents import Agent, Runner
    from agents.mcp import MCPServerStreamableHttp

    async with MCPServerStreamableHttp(params={"url": url}) as server:
        agent = Agent(name="agent", model=_openai_model(play), mcp_servers=[server])
        await Runner.run(agent, "go")


def _openai_model(play: Play) -> Any:
    from agents import set_tracing_disabled
    from agents.items import ModelResponse
    from agents.models.interface import Model
    from agents.usage import Usage
    from openai.types.responses import (
        ResponseFunctionToolCall,
        ResponseOutputMessage,
        ResponseOutputText,
    )

    class Played(Model):  # type: ignore[misc]
        async def get_response(self, *_: Any, **given: Any) -> Any:
            last = given["input"][-1] if isinstance(given["input"], list) else {}
            is_result = last.get("type") == "function_call_output"
            if is_result and not await play.calls_again(str(last["output"])):
                end = ResponseOutputText(type="output_text", text="end", annotations=[])
                return reply_of(
                    ResponseOutputMessage(
                        id="message",
                        role="assistant",
                        status="completed",
                        type="message",
                        content=[end],
                    )
                )
            return reply_of(
                ResponseFunctionToolCall(
                    type="function_call",
                    name=play.tool,
                    arguments=json.dumps({"what": "tea"}),
                    call_id=f"call {len(play.results)}",
                )
            )

        def stream_response(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

    def reply_of(output: Any) -> Any:
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    set_tracing_disabled(True)
    return Played()


FRAMEWORKS: dict[str, Callable[[str, Play], Coroutine[Any, Any, None]]] = {
    one.__name__: one
    for one in (
        langchain,
        langchain_mcp_adapters,
        langchain_mcp_adapters_asking,
        openai_agents,
        openai_agents_patient,
        pydantic_ai,
        pydantic_ai_asking,
        pydantic_ai_asking_legacy,
        pydantic_ai_legacy,
    )
}


def main() -> None:
    name, url, early, *tools = sys.argv[1:]
    for tool in tools:
        play, error = Play(tool=tool, early=int(early)), None
        try:
            asyncio.run(FRAMEWORKS[name](url, play))
        except Exception as ended:  # noqa: BLE001 - it is what the test is about
            error = f"{type(ended).__name__}: {ended}"
        print(json.dumps({"results": play.results, "asked": play.asked, "error": error}))  # noqa: T201 - its result


if __name__ == "__main__":
    main()
