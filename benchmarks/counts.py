"""Counts of the work that the server does for one operation. They do not depend on the load.

Turns of the event loop, tasks, timers, and reads and commits of the store are counted. The
operations are a call on each revision (without and with elicit), a paid webhook (the baseline and
elicit), an OAuth callback, and a settle without HTTP and without a second process. `python -m
benchmarks.counts` prints only the table. The work of an idle server in the same time is counted too
and subtracted.
"""

import asyncio
import json
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urljoin

import httpx
from mcp import Client
from mcp.server.mcpserver import MCPServer
from mcp_types import ElicitResult

from benchmarks import hooked
from benchmarks.calling import REVISIONS, Caller, serving
from benchmarks.hooking import delivered
from benchmarks.in_process import fresh, open_elicitations, utc_now
from benchmarks.served import by_hand, listening, settings_here, until_stdin_ends, with_elicit
from flows import elicit
from flows.elicitation.traits import TrustedCode
from flows.providers import github
from webapp.app import open_app
from webapp.demo.walker import Page
from webapp.elicitations.complete import complete_elicitation
from webapp.sandbox import Sandbox, new_sandbox
from webapp.sandbox.app import SandboxApp
from webapp.stores.sqlite import SqliteStore
from webapp.stores.sqlite_writer import SqliteWriter

TIMES = 100
IDLE_SECONDS = 2.0
_TIMES_BEFORE = 20
_CALLBACKS = 10
NAMES = ("turns", "tasks", "timers", "reads", "commits")
NAMES_OF_SIDES = {"by_hand": "without elicit", "with_elicit": "with elicit"}
Counts: TypeAlias = Mapping[str, float]
_OF_IDLE_SERVER = {"SqliteChanges._poll", "_set_result_unless_cancelled"}
_counts: Counter[str] = Counter()
_counted: list[bool] = []  # once for each process


class _Ready(deque[asyncio.Handle]):
    """The handles that a loop runs next.

    `has_worked` is True once a handle has done more than an idle server does.
    """

    has_worked = False

    def popleft(self) -> asyncio.Handle:
        handle = super().popleft()
        self.has_worked = self.has_worked or not _is_of_idle_server(handle)
        return handle


def _is_of_idle_server(handle: asyncio.Handle) -> bool:
    """Return True for a poll of the store's changes, the end of a sleep, and the main task."""
    callback = handle._callback  # type: ignore[attr-defined]  # noqa: SLF001 - not public
    its_task = getattr(callback, "__self__", None)
    if isinstance(its_task, asyncio.Task):
        return its_task.get_name() == "Task-1"
    return getattr(callback, "__qualname__", "") in _OF_IDLE_SERVER


class CountingLoop(asyncio.SelectorEventLoop):
    """An asyncio loop that counts its turns. The turns of uvloop cannot be counted.

    Turns in which only the work of an idle server runs are not counted, and its timers are not
    counted either. Otherwise the counts would depend on the time that an operation takes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ready = _Ready()

    def _run_once(self) -> None:
        self._ready.has_worked = False
        super()._run_once()  # type: ignore[misc]
        _counts["turns"] += self._ready.has_worked

    def create_task(self, *given: Any, **named: Any) -> Any:
        _counts["tasks"] += 1
        return super().create_task(*given, **named)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *given: Any, **named: Any
    ) -> Any:
        _counts["timers"] += getattr(callback, "__qualname__", "") not in _OF_IDLE_SERVER
        return super().call_at(when, callback, *given, **named)


def counted(owner: type[Any], name: str, what: str) -> None:
    """Count the calls of a method in this process."""
    method = getattr(owner, name)

    @wraps(method)
    def counting(*given: Any, **named: Any) -> Any:
        _counts[what] += 1
        return method(*given, **named)

    setattr(owner, name, counting)


def reporting_counts(app: Any) -> Any:
    """Wrap the app and add an address that returns the counts."""

    async def served(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == "/counts":
            body = json.dumps(_current_counts()).encode()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": body})
            return
        await app(scope, receive, send)

    return served


def _current_counts() -> dict[str, float]:
    return {**dict.fromkeys(NAMES, 0), **_counts, "at": time.monotonic()}


async def serve(which: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if which.startswith("webhook"):
            async with hooked.opened(which.removeprefix("webhook "), folder) as app:
                await until_stdin_ends(lambda _: reporting_counts(app))
            return

        if which == "callback":
            with listening() as listener:
                base = f"http://127.0.0.1:{listener.getsockname()[1]}"
                async with _connecting(base, folder) as app:
                    await until_stdin_ends(lambda _: reporting_counts(app), listener)
            return

        def build(base: str) -> Any:
            return reporting_counts(
                by_hand(base) if which == "by_hand" else with_elicit(base, folder)
            )

        await until_stdin_ends(build)


def _connecting(base: str, folder: Path) -> AbstractAsyncContextManager[Any]:
    """Serve a tool that asks for a sandbox account. The sandbox runs in its own process."""
    server = MCPServer("accounts", log_level="WARNING")

    @server.tool()
    async def whose(scope: str) -> str:
        return (await elicit.oauth(github, scopes=[scope])).label

    with listening() as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        sandbox = new_sandbox(url=url, serves=base)
        command = (sys.executable, "-m", "benchmarks.counts", "sandbox", str(listener.fileno()))
        subprocess.Popen(  # ends when we close its input
            [*command, json.dumps(asdict(sandbox))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
        )
    return open_app(settings_here(base, folder), server, sandbox=sandbox)


async def serve_sandbox(descriptor: int, text: str) -> None:
    answer = json.loads(text)
    sandbox = Sandbox(**{**answer, "redirect_origins": tuple(answer["redirect_origins"])})
    async with httpx.AsyncClient() as client:
        app = SandboxApp(sandbox, clock=utc_now, deliver=client.send)
        await until_stdin_ends(app, socket.socket(fileno=descriptor))


async def of_calls(which: str, mode: str, *, times: int = TIMES) -> Counts:
    async with at(which) as url, Caller.connected(url, mode=mode) as caller:
        return await _for_one(url, caller.call, times=times)


async def of_webhooks(which: str, *, times: int = TIMES) -> Counts:
    """Deliver webhooks one by one. With elicit, each settles a question and wakes a waiter."""
    async with at(f"webhook {which}") as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
        many = _before(times) + times
        opened: list[tuple[str, str]] = [(secrets.token_urlsafe(36), "cs_bare")] * many
        if which == "ours":
            opened = (await http.get("/prepare", params={"times": many})).json()
        deliveries = iter(opened)
        return await _for_one(url, lambda: delivered(url, *next(deliveries)), times=times)


async def of_callbacks(*, times: int = _CALLBACKS) -> Counts:
    """Count the work from the provider's redirect to our own redirect, for each callback."""
    counts: Counter[str] = Counter()
    async with at("callback") as url, httpx.AsyncClient(timeout=60) as browser:

        async def answer(context: Any, params: Any) -> ElicitResult:
            address = await _until_callback(browser, params.url, callback=f"{url}/callback/")
            before = await _counts_of(browser, url)
            reply = await browser.get(address)
            assert reply.has_redirect_location, reply.text
            counts.update(_done(before, await _counts_of(browser, url), rest))
            counts.subtract(reading)
            return ElicitResult(action="accept")

        rest, reading, _ = await _at_rest(browser, url, times=times * TIMES // _CALLBACKS)
        async with Client(f"{url}/mcp", mode="2026-07-28", elicitation_callback=answer) as client:
            for number in range(times + 1):
                if number == 1:  # call 0 has done the one-time work
                    counts.clear()
                result = await client.call_tool("whose", {"scope": f"scope-{number}"})
                assert not result.is_error, result
    return {name: counts[name] / times for name in NAMES}


async def _until_callback(browser: httpx.AsyncClient, address: str, *, callback: str) -> str:
    """Press every button until the provider redirects back, and return the address."""
    method, fields = "GET", dict[str, str]()
    while not address.startswith(callback):
        data = fields if method == "POST" else None
        reply = await browser.request(method, address, data=data)
        if reply.has_redirect_location:
            method, address = "GET", urljoin(address, reply.headers["location"])
        else:
            form = Page(reply.text).forms[0]
            method, address, fields = "POST", urljoin(address, form.action), form.fields
    return address


def of_settles(*, times: int = TIMES) -> Counts:
    """Count the settling of questions without waiters, in this process."""

    async def settle(folder: Path) -> Counts:
        async with open_elicitations(folder) as (elicitations, owner):
            counts: Counter[str] = Counter()
            for _ in range(times):
                asked = fresh(owner, now=utc_now())
                await elicitations.write(asked)
                await asyncio.sleep(0)
                before = _current_counts()
                await complete_elicitation(elicitations, asked.id, {"n": 1}, TrustedCode())
                after = _current_counts()
                counts.update({name: after[name] - before[name] for name in NAMES})
            return {name: counts[name] / times for name in NAMES}

    with tempfile.TemporaryDirectory() as folder, counting() as runner:
        return runner.run(settle(Path(folder)))


async def _for_one(url: str, act: Callable[[], Awaitable[object]], *, times: int) -> Counts:
    """Return the counts for one call of `act`, without the work of an idle server."""
    async with httpx.AsyncClient() as http:
        for _ in range(_before(times)):  # do the one-time work before the measurement
            await act()
        rest, reading, before = await _at_rest(http, url, times=times)
        for _ in range(times):
            await act()
        done = _done(before, await _counts_of(http, url), rest)
    return {name: (done[name] - reading[name]) / times for name in NAMES}


async def _at_rest(
    http: httpx.AsyncClient, url: str, *, times: int
) -> tuple[Counts, Counts, Counts]:
    """Return the counts of an idle second, of one request for /counts, and the current counts."""
    await _counts_of(http, url)
    first, second = await _counts_of(http, url), await _counts_of(http, url)
    reading = {name: second[name] - first[name] for name in NAMES}
    await asyncio.sleep(IDLE_SECONDS * min(times / TIMES, 1))
    after = await _counts_of(http, url)
    took = after["at"] - second["at"]
    rest = {name: (after[name] - second[name] - reading[name]) / took for name in NAMES}
    return rest, reading, after


def _done(before: Counts, after: Counts, rest: Counts) -> Counts:
    took = after["at"] - before["at"]
    return {name: after[name] - before[name] - rest[name] * took for name in NAMES}


def _before(times: int) -> int:
    return min(_TIMES_BEFORE, times)


async def _counts_of(http: httpx.AsyncClient, url: str) -> Counts:
    return dict((await http.get(f"{url}/counts")).json())


@asynccontextmanager
async def at(which: str) -> AsyncIterator[str]:
    async with serving(which, module="benchmarks.counts") as url:
        yield url


async def of_servers() -> AsyncIterator[tuple[str, Counts]]:
    for revision, mode in REVISIONS.items():
        for which, shown in NAMES_OF_SIDES.items():
            name = f"a tool call, {revision}, {shown}"
            yield name, await of_calls(which, mode)
    yield "a paid webhook, the baseline", await of_webhooks("bare")
    yield "a paid webhook, with elicit", await of_webhooks("ours")
    yield "an OAuth callback, with elicit", await of_callbacks()


async def table() -> str:
    rows = [row async for row in of_servers()]
    rows.append(("a settle, with elicit", await asyncio.to_thread(of_settles)))
    lines = [f"| counted | {' | '.join(NAMES)} |", "|" + "---|" * (len(NAMES) + 1)]
    lines += [
        f"| {what} | {' | '.join(f'{counts[name]:.1f}' for name in NAMES)} |"
        for what, counts in rows
    ]
    return "\n".join(lines)


@contextmanager
def counting() -> Generator[asyncio.Runner]:
    """Provide a runner that counts its loop's turns. Count the store's methods from now on."""
    if not _counted:
        _counted.append(True)
        for name in ("read", "find", "list"):
            counted(SqliteStore, name, "reads")
        counted(SqliteWriter, "_commit", "commits")
    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        yield runner


def main() -> None:
    match sys.argv[1:]:
        case []:
            print(asyncio.run(table()))
        case ["sandbox", descriptor, reported]:
            asyncio.run(serve_sandbox(int(descriptor), reported))
        case [which, *_]:
            with counting() as runner:
                runner.run(serve(which))


if __name__ == "__main__":
    main()
