"""A scripted client: it sends the HTTP requests that a known client sends.

`ScriptedClient` describes the client's behavior as data. Some clients declare a capability without
showing anything, answer instead of the person, hang, time out, forget a question, or never ask the
person.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from tests.clients.transport import Exchange, Json, Transport

OLDER, NEWER = "2025-11-25", "2026-07-28"
TIMED_OUT = "the client's own limit"
REQUIRED = -32042
_AT_ONCE_SECONDS = 0.05
_META = "io.modelcontextprotocol/"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Does:
    """A client's reaction to a request to show a form or a link.

    `shows`: the person sees the form or link. `answers`: the client sends this action without the
    person, after `after_seconds`. `fails`: the tool call fails. With none of them, nothing happens.
    """

    shows: bool = False
    answers: str | None = None
    after_seconds: float = 0.0
    fails: bool = False


SHOWS = Does(shows=True)
HANGS = Does()
DECLINES = Does(answers="decline", after_seconds=_AT_ONCE_SECONDS)
CANCELS = Does(answers="cancel", after_seconds=_AT_ONCE_SECONDS)
FAILS = Does(fails=True)
AGREES = Does(answers="accept", after_seconds=_AT_ONCE_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """The text and link that the model receives from a call."""

    text: str
    code: str | None = None
    is_error: bool = False
    link: str | None = None  # the link that the model has to show
    is_from_client: bool = False  # the text comes from the client, not from the server

    @property
    def first_sentence(self) -> str:
        return re.split(r"(?<=[.!?])\s", self.text, maxsplit=1)[0]


class Screen(Protocol):
    """The person at the client's window."""

    async def fills_form(self, message: str, schema: Json) -> Json:
        """Return the person's answer to a form that the client shows: action and content."""
        ...

    async def opens_link(self, message: str, url: str) -> str:
        """Return the person's action for a link that the client shows."""
        ...

    async def is_done(self) -> None:
        """Wait until the person says that they are done."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScriptedClient:
    """The description of a client.

    Attributes:
        declares: The elicitation capability that the client declares, for each protocol revision
            that it supports.
        gives_up_after_seconds: The client's time limit for a call, or None for no limit.
        pauses: The time limit does not run while the client shows something to the person.
        shows_required: The client shows the link of error -32042 instead of the error.
        calls_again_after_required: The number of times that the client repeats the call after the
            person has finished at that link.
        replays: After each answer, the client starts the call again from its first request. It
            sends its earlier answers again, one per round. LangChain's adapter for LangGraph does
            this.
    """

    name: str
    calls_itself: str
    version: str = "1.0"
    declares: Mapping[str, Json | None]
    form: Does = HANGS
    link: Does = HANGS
    shows_required: bool = False
    calls_again_after_required: int = 0
    reads_input_required: bool = True
    gives_up_after_seconds: float | None = None
    pauses: bool = False
    rounds_at_most: int = 10
    between_rounds_seconds: float = 0.25
    replays: bool = False
    declares_too: tuple[str, ...] = ()  # capabilities other than elicitation

    @asynccontextmanager
    async def connected(
        self, revision: str, *, transport: Transport, screen: Screen
    ) -> AsyncIterator["Connection"]:
        connection = Connection(client=self, revision=revision, transport=transport, screen=screen)
        await connection.connect()
        try:
            yield connection
        finally:
            await connection.close()


class GaveUp(Exception):
    """The client's time limit for a call has passed."""


@dataclass(slots=True, kw_only=True)
class Connection:
    """A connected client. It makes one call at a time."""

    client: ScriptedClient
    revision: str
    transport: Transport
    screen: Screen
    exchanges: list[Exchange] = field(default_factory=list[Exchange])
    acting: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])
    asked: list[Json] = field(default_factory=list[Json])  # the params of each request, in order
    _last_id: int = 0
    _drawn: int = 0  # number of requests that the person sees now
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def connect(self) -> None:
        if self.revision == NEWER:
            self.transport.headers["mcp-protocol-version"] = NEWER
            return
        about = {
            "protocolVersion": OLDER,
            "capabilities": self._capabilities,
            "clientInfo": self._info,
        }
        exchange = self._post({"id": 0, "method": "initialize", "params": about})
        async for _ in exchange.messages():
            pass
        self.transport.headers["mcp-session-id"] = exchange.header("mcp-session-id")
        self.transport.headers["mcp-protocol-version"] = OLDER
        await self._post({"method": "notifications/initialized"}).running

    async def call(self, tool: str, **arguments: Any) -> CallResult:
        """Make a call as the model does, and return what the model receives."""
        params = {"name": tool, "arguments": arguments}
        call = self._newer(params) if self.revision == NEWER else self._older(params)
        try:
            return await call
        except GaveUp:
            text = f"The call took longer than {self.client.gives_up_after_seconds:g} s."
            return CallResult(text=text, code=TIMED_OUT, is_error=True, is_from_client=True)

    async def close(self) -> None:
        for task in self.acting:
            task.cancel()
        await asyncio.gather(*self.acting, return_exceptions=True)
        for exchange in self.exchanges:
            await exchange.hang_up()

    async def _older(self, params: Json) -> CallResult:
        calls_left = self.client.calls_again_after_required
        while True:
            answer = await self._older_request(params)
            error = answer.get("error", {})
            if error.get("code") != REQUIRED or not self.client.shows_required:
                return call_result_in(answer)
            (about, *_) = error["data"]["elicitations"]
            self._begin(self.screen.opens_link(about["message"], about["url"]))
            await self.screen.is_done()
            if not calls_left:
                return call_result_in(answer)
            calls_left -= 1

    async def _older_request(self, params: Json) -> Json:
        id = self._next_id()
        exchange = self._post({"id": id, "method": "tools/call", "params": params})
        try:
            return await self._within_limit(self._answer_to(id, exchange))
        except GaveUp:
            gone = {"requestId": id, "reason": "timeout"}
            await self._post({"method": "notifications/cancelled", "params": gone}).running
            raise

    async def _answer_to(self, id: int, exchange: Exchange) -> Json:
        async for message in exchange.messages():
            if message.get("method") == "elicitation/create":
                self._begin(self._respond(message))
            elif message.get("id") == id:
                return message
        raise AssertionError("the stream ended without a result")

    async def _respond(self, request: Json) -> None:
        answer = await self._act(request["params"])
        await self._post({"id": request["id"], "result": answer}).running

    async def _newer(self, params: Json) -> CallResult:
        more: Json = {}
        earlier_answers: list[Json] = []  # of each round, for a client that replays
        answered = 0
        for _ in range(1 + self.client.rounds_at_most):
            id = self._next_id()
            exchange = self._newer_request(id, {**params, **more})
            try:
                answer = await self._within_limit(self._answer_to(id, exchange))
            except GaveUp:
                await exchange.hang_up()
                raise
            result = answer.get("result", {})
            if result.get("resultType") != "input_required":
                return call_result_in(answer)
            if not self.client.reads_input_required:
                await self._within_limit(asyncio.Event().wait())
            more = {"requestState": result["requestState"]}
            if requests := result.get("inputRequests"):
                asked = {key: request["params"] for key, request in requests.items()}
                if any(self._does(each).fails for each in asked.values()):
                    text = "The client cannot show what the server asks for."
                    return CallResult(text=text, code="refused", is_error=True, is_from_client=True)
                if answered < len(earlier_answers):
                    more["inputResponses"] = {key: earlier_answers[answered][key] for key in asked}
                    answered += 1
                    continue
                acts = {key: self._act(each) for key, each in asked.items()}
                answers = await self._within_limit(asyncio.gather(*acts.values()))
                more["inputResponses"] = dict(zip(acts, answers, strict=True))
                if self.client.replays:
                    earlier_answers.append(more["inputResponses"])
                    more, answered = {}, 0
            elif self.client.replays:
                raise AssertionError("LangChain's adapter fails on a round without a question")
            await asyncio.sleep(self.client.between_rounds_seconds)
        return CallResult(
            text="Too many rounds.", code="rounds", is_error=True, is_from_client=True
        )

    def _newer_request(self, id: int, params: Json) -> Exchange:
        meta = {
            f"{_META}protocolVersion": NEWER,
            f"{_META}clientInfo": self._info,
            f"{_META}clientCapabilities": self._capabilities,
        }
        headers = {"mcp-method": "tools/call", "mcp-name": params["name"]}
        request = {"id": id, "method": "tools/call", "params": {**params, "_meta": meta}}
        return self._post(request, headers)

    async def _act(self, asked: Json) -> Json:
        """React to a request to show a form or a link, and return the client's answer."""
        self.asked.append(asked)
        does = self._does(asked)
        if does.answers is not None:
            await asyncio.sleep(does.after_seconds)
            return {"action": does.answers, **({"content": {}} if does.answers == "accept" else {})}
        if not does.shows:
            await asyncio.Event().wait()
        with self._drawing():
            if _is_link(asked):
                return {"action": await self.screen.opens_link(asked["message"], asked["url"])}
            return await self.screen.fills_form(asked["message"], asked["requestedSchema"])

    def _does(self, asked: Json) -> Does:
        return self.client.link if _is_link(asked) else self.client.form

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        self._drawn += 1
        self._changed.set()
        try:
            yield
        finally:
            self._drawn -= 1
            self._changed.set()

    async def _within_limit(self, awaited: Awaitable[T]) -> T:
        """Await the result within the client's time limit for a call.

        On the newer revision, the limit does not run while the client shows something to the
        person, because no request is open then. On the older revision, `pauses` decides.

        Raises:
            GaveUp: The time limit has passed.
        """
        task = asyncio.ensure_future(awaited)
        clock = asyncio.get_running_loop().time
        left = self.client.gives_up_after_seconds
        try:
            while not task.done():
                is_paused = bool(self._drawn) and (self.client.pauses or self.revision == NEWER)
                began = clock()
                self._changed.clear()
                changed = asyncio.ensure_future(self._changed.wait())
                timeout = None if is_paused else left
                first = asyncio.FIRST_COMPLETED
                done, _ = await asyncio.wait({task, changed}, timeout=timeout, return_when=first)
                changed.cancel()
                if not done:
                    raise GaveUp
                if left is not None and not is_paused:
                    left = max(0.0, left - (clock() - began))
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @property
    def _info(self) -> Json:
        return {"name": self.client.calls_itself, "version": self.client.version}

    @property
    def _capabilities(self) -> Json:
        declared = self.client.declares[self.revision]
        own: Json = {} if declared is None else {"elicitation": declared}
        return {**own, **{name: {} for name in self.client.declares_too}}

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _begin(self, acting: Coroutine[Any, Any, Any]) -> None:
        self.acting.add(asyncio.create_task(acting))

    def _post(self, message: Json, headers: Mapping[str, str] | None = None) -> Exchange:
        self.exchanges.append(self.transport.post(message, headers))
        return self.exchanges[-1]


def _is_link(asked: Json) -> bool:
    return asked.get("mode") == "url"


def call_result_in(answer: Json) -> CallResult:
    if "error" in answer:
        error = answer["error"]
        return CallResult(text=error["message"], code=str(error["code"]), is_error=True)
    result = answer["result"]
    text = "\n".join(part["text"] for part in result["content"])
    link = re.search(r"http://\S+/e/\S+", text)
    return CallResult(
        text=text,
        code=result.get("_meta", {}).get("code"),
        is_error=bool(result.get("isError")),
        link=link[0] if link else None,
    )
