"""Two instances of one server behind nginx, configured as in docs/how-to/deployment.md."""

import asyncio
import socket
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.json import encode

from tests.hosts.host import MODULE, SECRET, Served
from tests.hosts.nginx import configured
from tests.support.cli import COMMAND, PROJECT, environment_of, output_until, start
from tests.support.leaks import LEAKS
from tests.support.processes import ended, error_of
from tests.support.processes import start as start_process
from tests.support.serving import free_port
from webapp.sandbox import Sandbox

DOCUMENT = PROJECT / "docs" / "how-to" / "deployment.md"
NAMES = ("a", "b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instances:
    """Two instances: the address through nginx, and the processes by name."""

    served: Served
    processes: dict[str, Process]
    ports: dict[str, int]
    settings: Mapping[str, str]
    start: Callable[[str], Awaitable[Process]]

    async def restart(self, name: str) -> None:
        """Restart as an operator does: send SIGTERM, wait for the end, and start again."""
        old = self.processes[name]
        old.terminate()
        end = await ended(old)
        LEAKS.check(f"standard output of instance {name}", end.out)
        assert end.status == 0, end.err
        self.processes[name] = await self.start(name)


def of_the_document(front: int, ports: Mapping[str, int], *, by_session: bool) -> str:
    """Return the nginx configuration of deployment.md, with or without routing by session."""
    page = DOCUMENT.read_text("utf-8").partition("\n## Several processes\n")[2]
    text = page.partition("```nginx\n")[2].partition("```")[0]
    for number, name in enumerate(NAMES, 1):
        text = text.replace(f"10.0.0.{number}:8765", f"127.0.0.1:{ports[name]}")
    text = text.replace("listen 8080;", f"listen 127.0.0.1:{front};")
    return text if by_session else text.replace("http://$elicit;", "http://elicit;")


@asynccontextmanager
async def instances(
    folder: Path,
    *,
    store: str,
    by_session: bool = True,
    on_one_machine: bool = False,
    server: str = f"{MODULE}:served",
    extra: Mapping[str, str] | None = None,
    front: int = 0,
    sandbox: Sandbox | None = None,
) -> AsyncIterator[Instances]:
    """Run both instances. Unless `on_one_machine`, they cannot reach each other.

    `front` is nginx's port, or 0 for a free port. `sandbox` has the settings of a sandbox for the
    server at nginx's address.
    """
    folder.chmod(0o700)  # noqa: ASYNC240 - one call
    front, ports = front or free_port(), {name: free_port() for name in NAMES}
    url = f"http://127.0.0.1:{front}"
    settings = {
        "ELICIT_URL": url,
        "ELICIT_SECRET": SECRET,
        "ELICIT_STORE": store,
        "ELICIT_PROXIES": "127.0.0.1",
        **(extra or {}),
    }
    async with AsyncExitStack() as stack:
        processes = dict[str, Process]()
        # A socket's path must be short: at most 107 characters.
        shared = stack.enter_context(TemporaryDirectory())

        async def start_one(name: str) -> Process:
            runtime = Path(shared, "both" if on_one_machine else name)
            runtime.mkdir(exist_ok=True)  # noqa: ASYNC240 - one call
            more = {**settings, "ELICIT_INSTANCE": name, "XDG_RUNTIME_DIR": str(runtime)}
            return await _started(
                folder, server, port=ports[name], settings=more, sandbox=sandbox, parents=stack
            )

        async def end() -> None:
            for name, process in processes.items():
                if process.returncode is None:
                    process.terminate()
                LEAKS.check(f"standard output of instance {name}", (await ended(process)).out)

        stack.push_async_callback(end)
        for name in NAMES:
            processes[name] = await start_one(name)
        text = of_the_document(front, ports, by_session=by_session)
        await stack.enter_async_context(configured(folder, text, front=front))

        def log() -> str:
            return "".join(map(error_of, processes.values()))

        yield Instances(
            served=Served(url=url, process=processes["a"], log=log),
            processes=processes,
            ports=ports,
            settings=settings,
            start=start_one,
        )


async def _started(
    folder: Path,
    server: str,
    *,
    port: int,
    settings: Mapping[str, str],
    sandbox: Sandbox | None,
    parents: AsyncExitStack,
) -> Process:
    """Start an instance and wait until it serves.

    If `sandbox` is set, the instance receives it over a socket, like a worker from its parent.
    """
    words = ("serve", server, "--port", str(port))
    cwd = PROJECT if server.startswith("tests.") else folder
    if sandbox is None:
        process = await start(*words, home=folder, cwd=cwd, extra=settings)
        LEAKS.check("standard output of an instance", await output_until("stop", process))
        return process
    own_end, child_end = socket.socketpair()
    parents.enter_context(own_end)
    with child_end:
        own_end.sendall(encode({"sandbox": sandbox}) + b"\n")
        process = await start_process(
            *(*COMMAND, *words, "--parent-fd", str(child_end.fileno())),
            name=f"instance {settings['ELICIT_INSTANCE']}",
            cwd=cwd,
            env=environment_of(folder, settings),
            pass_fds=[child_end.fileno()],
        )
    own_end.setblocking(False)
    try:
        # The instance sends one byte when it starts to serve requests.
        ready_byte = await asyncio.get_running_loop().sock_recv(own_end, 1)
    except ConnectionResetError:
        ready_byte = b""
    assert ready_byte, error_of(process)
    return process
