"""`python -m benchmarks.restate`: a question over our HTTP API, next to an awakeable of Restate.

Both sides do the same: a program creates a wait, asks for its outcome, completes it, and receives
the outcome. The same client sends three HTTP requests to each side. Each server stores a change on
the disk before it answers: Restate in its log with fsync (the default), our server in SQLite with
`synchronous=FULL`. Restate calls a handler in a separate process. The time of that process counts
as a part of Restate's time.

Risks: the client uses as much processor time as the servers. So the time of the servers' processes
is shown in addition to the rates.
"""

import argparse
import asyncio
import base64
import json
import os
import shutil
import socket
import string
import subprocess
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Final, Protocol

import httpx

from benchmarks.figure import Figure, Round, in_rounds, summary, table
from benchmarks.settling import AT_ONCE, rate

_TOP = Path(__file__).parents[1]
_HERE = Path(__file__).parent
_BUILD = _TOP / "build" / "restate"
_KEYS, _USES_OF_A_KEY = 400, 30
_ANSWER: Final = {"paid": True}
_QUESTION: Final = {"message": "Book the room.", "url": "https://rooms.example/7"}
_DIGITS: Final = string.digits + string.ascii_lowercase + string.ascii_uppercase
_FIRST_SIGNAL: Final = 17


class Side(Protocol):
    """A measured system with its processes."""

    processes: Sequence[Process]

    async def one(self) -> None:
        """Create a wait, wait for its outcome, and complete it."""
        ...


@dataclass(slots=True, kw_only=True)
class Restate:
    client: httpx.AsyncClient
    ingress: str
    processes: Sequence[Process]

    async def one(self) -> None:
        begun = await self.client.post(f"{self.ingress}/asker/ask/send", json=_QUESTION)
        id = begun.raise_for_status().json()["invocationId"]
        resolve = f"{self.ingress}/restate/awakeables/{_awakeable(id)}/resolve"
        response, done = await asyncio.gather(
            self.client.get(f"{self.ingress}/restate/invocation/{id}/attach"),
            self.client.post(resolve, json=_ANSWER),
        )
        done.raise_for_status()
        assert response.raise_for_status().json() == _ANSWER


@dataclass(slots=True, kw_only=True)
class OurSide:
    client: httpx.AsyncClient
    api: str
    keys: Iterator[str]
    processes: Sequence[Process]
    _asked: int = 0

    async def one(self) -> None:
        key = next(self.keys)
        self._asked += 1
        about = {"authorization": f"Bearer {key}"}
        question = {"kind": "url", "user": f"user-{self._asked % 1000}", **_QUESTION}
        asked = await self.client.post(self.api, json=question, headers=about)
        at = f"{self.api}/{asked.raise_for_status().json()['id']}"
        response, done = await asyncio.gather(
            self.client.get(at, params={"wait": 50}, headers=about),
            self.client.post(f"{at}/complete", json={"content": _ANSWER}, headers=about),
        )
        done.raise_for_status()
        assert response.raise_for_status().json()["content"] == _ANSWER


def _awakeable(invocation: str) -> str:
    """Compute the id of an invocation's first awakeable. No handler then needs to send the id."""
    digits = invocation.removeprefix("inv_1")
    partition, random = (_number(digits[:11]), _number(digits[11:]))
    parts = (partition.to_bytes(8, "little"), random.to_bytes(16, "little"))
    signal = _FIRST_SIGNAL.to_bytes(4, "big")
    return "sign_1" + base64.urlsafe_b64encode(b"".join((*parts, signal))).decode().rstrip("=")


def _number(digits: str) -> int:
    number = 0
    for digit in digits:
        number = number * len(_DIGITS) + _DIGITS.index(digit)
    return number


async def compared_with_restate(*, seconds: float, times: int = 200) -> list[Figure]:
    """Run rounds in which both sides alternate. Return the rates and the processor times."""
    rates, processors = list[Round](), list[Round]()
    async with AsyncExitStack() as stack:
        many = 2 * AT_ONCE
        limits = httpx.Limits(max_connections=many, max_keepalive_connections=many)
        client = httpx.AsyncClient(timeout=300, limits=limits)
        await stack.enter_async_context(client)
        restate = await stack.enter_async_context(_restate(client))
        our_side = await stack.enter_async_context(_our_side(client))
        sides: list[Side] = [restate, our_side]
        for side in sides:
            await rate(side.one, times)  # warm-up
        for number in in_rounds(seconds):
            found = dict[int, tuple[float, float]]()
            for place in (0, 1) if number % 2 else (1, 0):
                side = sides[place]
                before = _processor_seconds(side)
                found[place] = (
                    await rate(side.one, times),
                    (_processor_seconds(side) - before) / times,
                )
            rates.append((found[0][0], found[1][0]))
            processors.append((found[0][1], found[1][1]))
    what = f"{AT_ONCE} at once, compared with Restate"
    return [
        summary(
            f"questions a second over HTTP, {what}",
            rates,
            show=lambda each: f"{each:,.0f}/s",
            at_least=5,
        ),
        summary(
            f"processor time of the servers for one, {what}",
            processors,
            show=lambda each: f"{each * 1e3:.2f} ms",
        ),
    ]


@asynccontextmanager
async def _restate(client: httpx.AsyncClient) -> AsyncIterator[Restate]:
    server = await asyncio.to_thread(installed)
    ingress, admin, node, handler = _free_ports(4)
    with tempfile.TemporaryDirectory() as folder:
        about = {
            "RESTATE_LISTEN_MODE": "tcp",
            "RESTATE_BIND_ADDRESS": f"127.0.0.1:{node}",
            "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress}",
            "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
            "RESTATE_LOG_FILTER": "error",
            "DO_NOT_TRACK": "1",
        }
        path = {"PYTHONPATH": os.pathsep.join([str(_TOP), str(_BUILD)])}
        async with (
            _process(
                *(sys.executable, "-m", "benchmarks.restate_process", str(handler)), env=path
            ) as handlers,
            _process(
                *(str(server), "--base-dir", folder, "--node-name", "figures", "--no-logo"),
                env=about,
            ) as served,
        ):
            deployed = {"uri": f"http://127.0.0.1:{handler}"}
            await _accepted(client, f"http://127.0.0.1:{admin}/deployments", deployed)
            processes = (served, handlers)
            at = f"http://127.0.0.1:{ingress}"
            yield Restate(client=client, ingress=at, processes=processes)


@asynccontextmanager
async def _our_side(client: httpx.AsyncClient) -> AsyncIterator[OurSide]:
    command = (sys.executable, "-m", "benchmarks.api_process", str(_KEYS))
    async with _process(*command, env={"PYTHONPATH": str(_TOP)}) as process:
        assert process.stdout is not None
        keys = json.loads(await process.stdout.readline())
        address = (await process.stdout.readline()).decode().strip()
        each = chain.from_iterable(repeat(key, _USES_OF_A_KEY) for key in chain(keys, keys))
        yield OurSide(
            client=client, api=f"{address}/api/questions", keys=each, processes=(process,)
        )


@asynccontextmanager
async def _process(*command: str, env: Mapping[str, str]) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env={**os.environ, **env}
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def _accepted(client: httpx.AsyncClient, url: str, body: Mapping[str, str]) -> None:
    """Retry until Restate listens and can reach the handler."""
    async with asyncio.timeout(60):
        while True:
            try:
                (await client.post(url, json=body)).raise_for_status()
            except httpx.HTTPError:
                await asyncio.sleep(0.2)
            else:
                return


def _processor_seconds(side: Side) -> float:
    """Return the processor seconds that the side's processes have used, as Linux counts them."""
    ticks = 0
    for process in side.processes:
        fields = Path(f"/proc/{process.pid}/stat").read_text("ascii").rpartition(") ")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _free_ports(many: int) -> list[int]:
    """Return free ports, which no other process is likely to use before Restate does."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(many)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def installed() -> Path:
    """Install Restate's server and its library, and return the path of the server."""
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes")
    if not (_BUILD / "restate").exists():
        pins = str(_HERE / "restate-requirements.txt")
        subprocess.run([*pip, "--target", str(_BUILD), "--requirement", pins], check=True)
    packages = _BUILD / "node_modules"
    if not packages.exists():
        for name in ("package.json", "package-lock.json"):
            shutil.copy(_HERE / name, _BUILD)
        options = ("--ignore-scripts", "--no-audit", "--no-fund", "--silent")
        subprocess.run(["npm", "ci", *options], cwd=_BUILD, check=True)
    (program,) = packages.glob("@restatedev/restate-server-*/bin/restate-server")
    return program


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.restate", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a rougher one")
    seconds = 10.0 if parser.parse_args().quick else 60.0
    print(table(asyncio.run(compared_with_restate(seconds=seconds))))


if __name__ == "__main__":
    main()
