"""Two instances of one server behind nginx, as docs/workers.md has it."""

from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.hosts.host import MODULE, SECRET, Served
from tests.hosts.nginx import configured
from tests.support.cli import COMMAND, HOUSE, environment_of, said_until
from tests.support.leaks import EARS
from tests.support.processes import ended, error_of, start
from tests.support.serving import free_port

DOCUMENT = HOUSE / "docs" / "workers.md"
NAMES = ("a", "b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instances:
    """What is reached through nginx, and the processes behind it by their names."""

    served: Served
    processes: dict[str, Process]
    ports: dict[str, int]


def of_the_document(front: int, ports: Mapping[str, int], *, by_session: bool) -> str:
    """Nginx's configuration as the document has it, here; or without going by the session."""
    text = DOCUMENT.read_text("utf-8").partition("```nginx\n")[2].partition("```")[0]
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
) -> AsyncIterator[Instances]:
    """Both serve; unless they are `on_one_machine`, they do not reach each other."""
    folder.chmod(0o700)  # noqa: ASYNC240 - one call
    front, ports = free_port(), {name: free_port() for name in NAMES}
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
        # A socket's path is short: 107 letters at most.
        shared = stack.enter_context(TemporaryDirectory())
        for name in NAMES:
            runtime = Path(shared, "both" if on_one_machine else name)
            runtime.mkdir(exist_ok=True)  # noqa: ASYNC240 - one call
            more = {**settings, "ELICIT_INSTANCE": name, "XDG_RUNTIME_DIR": str(runtime)}
            processes[name] = await stack.enter_async_context(
                _instance(folder, server, port=ports[name], settings=more, processes=processes)
            )
        text = of_the_document(front, ports, by_session=by_session)
        await stack.enter_async_context(configured(folder, text, front=front))

        def log() -> str:
            return "".join(map(error_of, processes.values()))

        served = Served(url=url, process=processes["a"], log=log)
        yield Instances(served=served, processes=processes, ports=ports)


@asynccontextmanager
async def _instance(
    folder: Path,
    server: str,
    *,
    port: int,
    settings: Mapping[str, str],
    processes: dict[str, Process],
) -> AsyncIterator[Process]:
    name = settings["ELICIT_INSTANCE"]
    process = await start_instance(folder, server, port=port, settings=settings)
    processes[name] = process
    try:
        yield process
    finally:
        last = processes[name]
        if last.returncode is None:
            last.terminate()
        EARS.hear(f"standard output of instance {name}", (await ended(last)).out)


async def start_instance(
    folder: Path, server: str, *, port: int, settings: Mapping[str, str]
) -> Process:
    """One of them, when it serves."""
    process = await start(
        *(*COMMAND, "serve", server, "--port", str(port)),
        name=f"instance {settings['ELICIT_INSTANCE']}",
        cwd=HOUSE if server.startswith("tests.") else folder,
        env=environment_of(folder, settings),
    )
    EARS.hear("standard output of an instance", await said_until("stop", process))
    return process
