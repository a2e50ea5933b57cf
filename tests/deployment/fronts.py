"""nginx and Caddy with the files of deploy/, in front of an `elicit serve` process."""

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from tests.deployment.tools import DEPLOY, found, packages
from tests.hosts.host import Served, StartedHost
from tests.support.certificates import Holder, issued
from tests.support.mcp_server import TLS
from tests.support.processes import ended, error_of, start
from tests.support.serving import bound, free_port

NAME = "tools.example.com"  # the host name in the files; these tests use localhost
PORT = "8765"
SERVE = ("python", "-P", "-m", "elicit_url", "serve", "{app}", "--fd", "{fd}")


@cache
def certificate() -> Holder:
    """Return a certificate for localhost, which the clients of this process trust."""
    since, until = (datetime(year, 1, 1, tzinfo=UTC) for year in (2020, 2120))
    root = issued("Front", is_authority=True, since=since, until=until)
    TLS.load_verify_locations(cadata=root.pem.decode())
    return issued("localhost", by=root, since=since, until=until)


def keep_certificate(folder: Path) -> tuple[Path, Path]:
    """Write the certificate and its key, and return their paths."""
    held = certificate()
    key = held.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "fullchain.pem").write_bytes(held.pem)
    (folder / "privkey.pem").write_bytes(key)
    return folder / "fullchain.pem", folder / "privkey.pem"


Log = Callable[[], str]  # returns everything written until now
Front = Callable[[Path, int, int], AbstractAsyncContextManager[Log]]


def changed(text: str, changes: Mapping[str, str]) -> str:
    """Return the text with these changes. Every old part must be present."""
    for old, new in changes.items():
        assert old in text, f"the text must contain {old!r}"
        text = text.replace(old, new)
    return text


@asynccontextmanager
async def nginx(folder: Path, front: int, back: int) -> AsyncIterator[Log]:
    """Run nginx at port `front`, which forwards to port `back`."""
    keep_certificate(folder)
    site = changed(
        (DEPLOY / "nginx" / "elicit.conf").read_text("utf-8"),
        {
            "/etc/letsencrypt/live/tools.example.com/": f"{folder}/",
            "/var/log/nginx/": f"{folder}/",
            "listen 80;": f"listen 127.0.0.1:{free_port()};",
            "    listen [::]:80;\n": "",
            "listen 443 ": f"listen 127.0.0.1:{front} ",
            "    listen [::]:443 ssl http2;\n": "",
            NAME: "localhost",
            f"127.0.0.1:{PORT}": f"127.0.0.1:{back}",
        },
    )
    (folder / "elicit.conf").write_text(site)
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/nginx.pid; error_log {folder}/main.log; user root;\n"
        "events { worker_connections 512; }\n"
        f"http {{ gzip on; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;\n"
        f"fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;\n"
        f"include {folder}/elicit.conf; }}\n"
    )
    command = (found("nginx"), "-p", str(folder), "-c", str(folder / "nginx.conf"))
    process = await start(*command, name="nginx", cwd=folder)
    logs = [folder / name for name in ("elicit-access.log", "elicit-error.log", "main.log")]

    def log() -> str:
        return "".join(each.read_text() for each in logs if each.exists()) + error_of(process)

    try:
        await listens(front, log)
        yield log
    finally:
        process.send_signal(signal.SIGQUIT if process.returncode is None else 0)
        await process.wait()


@asynccontextmanager
async def caddy(folder: Path, front: int, back: int) -> AsyncIterator[Log]:
    """Run Caddy at port `front`, without a port 80 and with our certificate instead of ACME."""
    chain, key = keep_certificate(folder)
    file = changed(
        (DEPLOY / "caddy" / "Caddyfile").read_text("utf-8"),
        {
            "\n{\n": "\n{\n\tadmin off\n\tauto_https disable_redirects\n\tskip_install_trust\n",
            f"{{$HOST:{NAME}}} {{\n": f"{{$HOST}} {{\n\tbind 127.0.0.1\n\ttls {chain} {key}\n",
        },
    )
    (folder / "Caddyfile").write_text(file)
    process = await start(
        *(str(packages() / "bin" / "caddy"), "run", "--config", str(folder / "Caddyfile")),
        name="caddy",
        cwd=folder,
        env={
            **{name: str(folder) for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")},
            "HOST": f"localhost:{front}",
            "UPSTREAM": f"127.0.0.1:{back}",
        },
    )
    try:
        await listens(front, lambda: error_of(process))
        yield lambda: error_of(process)
    finally:
        if process.returncode is None:
            process.terminate()
        await ended(process)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontedHost(StartedHost):
    """`elicit serve` behind nginx or Caddy."""

    front: Front

    @asynccontextmanager
    async def served(
        self, folder: Path, *, extra: Mapping[str, str] | None = None
    ) -> AsyncIterator[Served]:
        port = free_port()
        settings = {"ELICIT_PROXIES": "127.0.0.1", **(extra or {})}
        with bound("127.0.0.1") as listener:
            listener.listen(128)
            url = f"https://localhost:{port}"
            async with self._started(listener, url=url, folder=folder, extra=settings) as served:
                back = listener.getsockname()[1]
                listener.close()  # now only the host process has the socket open
                async with self.front(folder, port, back) as log:
                    yield replace(served, proxy_log=log)


FRONTS = tuple(
    FrontedHost(name=front.__name__, says="", command=SERVE, app="served", front=front)
    for front in (nginx, caddy)
)


async def listens(port: int, log: Log) -> None:
    async with asyncio.timeout(300):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                assert not re.search("emerg|Error:", log()), log()
                await asyncio.sleep(0)
            else:
                writer.close()
                return
