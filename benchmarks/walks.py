"""`python -m benchmarks.walks`: count the walks of docs/explanation/architecture.md.

A walk is the sequence of our functions that an operation enters. The walk changes the file if the
next function is in another file, and the package if it is in another package.

Risks: unrelated work at the same time is counted too. So the trace skips the sweeper and the
watchers. It skips tasks that were started before the walk, such as the call that a webhook wakes.
It also skips tasks that belong to another walk, because that walk is counted separately.
"""

import asyncio
import dis
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urljoin

import httpx
from mcp import Client
from mcp.server.mcpserver import MCPServer
from mcp_types import ElicitResult

from benchmarks.calling import REVISIONS
from benchmarks.hooked import opened_checkout
from benchmarks.hooking import paid_event
from benchmarks.in_process import TAKER, fresh, utc_now
from flows import complete_elicitation, elicit
from flows.crypto.tokens import Ring
from flows.elicitation.states import Status
from flows.providers import github
from flows.question import Link, asking
from webapp.app import open_app
from webapp.demo.walker import Page
from webapp.http.port import bind, listen
from webapp.limits import Arrivals
from webapp.sandbox import Sandbox, new_sandbox
from webapp.sandbox.app import SandboxApp
from webapp.sandbox.stripe.sessions import signature_of
from webapp.service import Service
from webapp.serving.http_server import Pages
from webapp.settings.settings import Settings

_ROOT = f"{Path(__file__).resolve().parent.parent}{os.sep}"
_APART = ("webapp/sandbox/", "webapp/demo/")
_MEANWHILE = "/webapp/stores/sqlite.py"  # polls for writes of other processes
_RESUME = dis.opmap["RESUME"]
# True in a task that does the work of another walk, and in the tasks that it starts.
_is_another_walk = ContextVar("is_another_walk", default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """A traced walk. `steps` has the file of each entered function, in order."""

    name: str
    steps: list[str] = field(default_factory=list[str])

    @property
    def files(self) -> int:
        return len(set(self.steps))

    @property
    def changes_of_file(self) -> int:
        return _changes(self.steps)

    @property
    def changes_of_package(self) -> int:
        return _changes(list(map(package_of, self.steps)))


def package_of(file: str) -> str:
    """Return the file's package in flows or webapp. Any other file is a package of its own."""
    return "/".join(file.split("/")[:2])


def _changes(steps: list[str]) -> int:
    return sum(here != there for here, there in pairwise(steps))


@contextmanager
def traced(walk: Walk) -> Iterator[None]:
    before = asyncio.all_tasks()

    def enter(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        file = code.co_filename.removeprefix(_ROOT)
        if event != "call" or not file.startswith(("flows/", "webapp/")) or "<" in code.co_name:
            return
        opcode, argument = code.co_code[frame.f_lasti : frame.f_lasti + 2]
        has_begun = opcode == _RESUME and argument  # the frame is a resumed coroutine
        is_apart = file.startswith(_APART) or _task() in before or _is_another_walk.get()
        if not (has_begun or is_apart or _is_meanwhile(frame)):
            walk.steps.append(file)

    sys.setprofile(enter)
    try:
        yield
    finally:
        sys.setprofile(None)


def _is_meanwhile(frame: FrameType | None) -> bool:
    while frame is not None and not frame.f_code.co_filename.endswith(_MEANWHILE):
        frame = frame.f_back
    return frame is not None


def _task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # between two turns of the loop
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    url: str
    service: Service
    sandbox: Sandbox
    browser: httpx.AsyncClient
    links: list[str]

    @property
    def owner(self) -> str:
        return self.service.identity.local_owner


def _server(links: list[str]) -> MCPServer:
    server = MCPServer("walks", log_level="WARNING")

    @server.tool()
    async def buy() -> str:
        def checkout(link: Link) -> str:
            links.append(link.id)
            return "https://pay.example/tea"

        await elicit.url("Pay for a pound of tea", checkout, origins=["https://pay.example"])
        return "bought"

    @server.tool()
    async def whose() -> str:
        return (await elicit.oauth(github, scopes=["repo"])).label

    return server


def _settings(url: str, folder: Path) -> Settings:
    ring = Ring([b"s" * 32])
    return Settings(url=url, ring=ring, store=f"sqlite:///{folder / 'walks.db'}", uid=os.getuid())


@asynccontextmanager
async def _place(folder: Path) -> AsyncIterator[Step]:
    """Serve a server in this process like `elicit serve --sandbox`."""
    links: list[str] = []
    built: list[Service] = []
    async with AsyncExitStack() as stack:
        listener, other = (stack.enter_context(bind("127.0.0.1", 0)) for _ in range(2))
        url, sandbox_url = (f"http://127.0.0.1:{one.getsockname()[1]}" for one in (listener, other))
        sandbox = new_sandbox(url=sandbox_url, serves=url)
        app = await stack.enter_async_context(
            open_app(_settings(url, folder), _server(links), sandbox=sandbox, built=built.append)
        )
        browser = await stack.enter_async_context(httpx.AsyncClient())
        outside = SandboxApp(sandbox, clock=utc_now, deliver=browser.send)
        group = await stack.enter_async_context(asyncio.TaskGroup())
        for its_listener, its_app in ((listener, app), (other, outside)):
            listen(its_listener)
            pages = Pages(its_app, arrivals=Arrivals())
            group.create_task(pages.serve(sockets=[its_listener]))
            stack.callback(pages.stop)
        yield Step(url=url, service=built[0], sandbox=sandbox, browser=browser, links=links)


async def _call(place: Step, revision: str) -> Walk:
    """Trace a call. The person answers with `complete_elicitation`, which is counted separately."""
    walk = Walk(name=f"a call with URL mode, {revision}")

    async def answer(context: Any, params: Any) -> ElicitResult:
        person.set()
        return ElicitResult(action="accept")

    async def complete() -> None:
        _is_another_walk.set(True)
        await person.wait()
        with asking(place.service.completing):
            await complete_elicitation(place.links[-1])

    person = asyncio.Event()
    async with Client(
        f"{place.url}/mcp", mode=REVISIONS[revision], elicitation_callback=answer
    ) as client:
        await client.list_tools()  # as clients do first; a result needs its tool's schema
        completing = asyncio.create_task(complete())  # created before the walk, so not part of it
        with traced(walk):
            result = await client.call_tool("buy", {})
        await completing
    assert not result.is_error, result
    return walk


async def _callback(place: Step) -> Walk:
    walk = Walk(name="an OAuth callback")

    async def answer(context: Any, params: Any) -> ElicitResult:
        method, address, fields = "GET", params.url, dict[str, str]()
        while not address.startswith(f"{place.url}/callback/"):
            reply = await place.browser.request(
                method, address, data=fields if method == "POST" else None
            )
            if reply.has_redirect_location:
                method, address = "GET", urljoin(address, reply.headers["location"])
            else:
                form = Page(reply.text).forms[0]
                method, address, fields = "POST", urljoin(address, form.action), form.fields
        with traced(walk):
            reply = await place.browser.get(address)
        assert reply.status_code == 303, reply.text
        return ElicitResult(action="accept")

    async with Client(f"{place.url}/mcp", mode="2026-07-28", elicitation_callback=answer) as client:
        result = await client.call_tool("whose", {})
    assert not result.is_error, result
    return walk


async def _webhook(place: Step) -> Walk:
    walk = Walk(name="a paid webhook")
    asked, session = opened_checkout(place.owner)
    await place.service.elicitations.write(asked)
    body = paid_event(asked.id, session)
    headers = [signature_of(body, secret=place.sandbox.webhook_secret, now=utc_now())]
    with place.service.elicitations.waiters.waiter(
        asked.id, request_id="leg", run="run", taker=TAKER
    ):
        with traced(walk):
            reply = await place.browser.post(
                f"{place.url}/webhooks/stripe", content=body, headers=headers
            )
        assert reply.json() == {"received": "accepted"}, reply.text
    return walk


async def _completion(place: Step) -> Walk:
    walk = Walk(name="complete_elicitation")
    asked = fresh(place.owner, now=utc_now())
    await place.service.elicitations.write(asked)
    with asking(place.service.completing), traced(walk):
        assert await asyncio.create_task(complete_elicitation(asked.id)) == "accepted"
    return walk


async def _start(folder: Path) -> Walk:
    """Trace a start after a process left an open question behind that has expired."""
    walk = Walk(name="a start after kill -9")
    async with _place(folder) as place:
        asked = fresh(place.owner, now=utc_now() - timedelta(hours=1))
        await place.service.elicitations.write(asked)
    settings, built = _settings(place.url, folder), asyncio.Queue[Service]()
    has_ended = asyncio.Event()

    async def live() -> None:
        async with open_app(settings, _server([]), built=built.put_nowait):
            await has_ended.wait()

    with traced(walk):
        living = asyncio.create_task(live())
        service = await built.get()
        while (await _status(service, asked.id)) is not Status.EXPIRED:  # noqa: ASYNC110
            await asyncio.sleep(0)  # only the store shows the expiry
    has_ended.set()
    await living
    return walk


async def _status(service: Service, id: str) -> Status:
    """Return the stored status. This read runs in an older task, so the walk does not count it."""
    found = await service.elicitations.get(id)
    assert found is not None
    return found.status


async def walks(folder: Path) -> list[Walk]:
    async with _place(folder) as place:
        for revision in REVISIONS:
            await _call(place, revision)  # the first call of each revision imports and compiles
        found = [await _call(place, revision) for revision in REVISIONS]
        found += [await _callback(place), await _webhook(place), await _completion(place)]
    return [*found, await _start(folder)]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for walk in asyncio.run(walks(Path(folder))):
            print(
                f"{walk.name}: {len(walk.steps)} functions, {walk.files} files, "
                f"{walk.changes_of_file} changes of file, {walk.changes_of_package} of package"
            )


if __name__ == "__main__":
    main()
