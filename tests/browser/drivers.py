"""Browsers over WebDriver: any Chromium, Firefox and WebKitGTK that the system's packages install.

Firefox needs no geckodriver: it accepts the same commands over Marionette, its own socket. The
tests of a browser that is not installed are skipped.
"""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest

from tests.support.serving import free_port

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # WebDriver, 12.4: the key of an element's id
PATIENCE = 300  # seconds
PLACES = ("/usr/lib/*/webkit2gtk-4.1/MiniBrowser", "/usr/libexec/webkit2gtk-4.1/MiniBrowser")
NAMES = ("chromium", "firefox", "webkit")


class CommandFailed(Exception):
    """The browser refused a command."""


class Session(Protocol):
    """A session of a browser."""

    async def command(self, name: str, **arguments: Any) -> Any:
        """Send the command, and return its value."""
        ...


@dataclass(slots=True, kw_only=True)
class HttpSession:
    """A session over WebDriver's HTTP requests."""

    client: httpx.AsyncClient
    path: str

    async def command(self, name: str, **arguments: Any) -> Any:
        element = arguments.pop("element", "")
        path, method = {
            "Navigate": ("url", "POST"),
            "FindElement": ("element", "POST"),
            "ElementClick": (f"element/{element}/click", "POST"),
            "ElementClear": (f"element/{element}/clear", "POST"),
            "ElementSendKeys": (f"element/{element}/value", "POST"),
            "GetElementText": (f"element/{element}/text", "GET"),
            "PerformActions": ("actions", "POST"),
            "DeleteAllCookies": ("cookie", "DELETE"),
        }[name]
        body = arguments if method == "POST" else None
        answer = await self.client.request(method, f"{self.path}/{path}", json=body)
        value = answer.json()["value"]
        if answer.is_error:
            raise CommandFailed(value)
        return value


@dataclass(slots=True, kw_only=True)
class Marionette:
    """A session over the socket of Firefox: each message is its length, a colon and JSON."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    number: int = 0

    async def command(self, name: str, **arguments: Any) -> Any:
        self.number += 1
        element = {"id": arguments.pop("element")} if "element" in arguments else {}
        message = json.dumps([0, self.number, f"WebDriver:{name}", {**arguments, **element}])
        self.writer.write(f"{len(message)}:{message}".encode())
        _, _, error, result = await self.receive()
        if error is not None:
            raise CommandFailed(error)
        return result.get("value")

    async def receive(self) -> Any:
        size = (await self.reader.readuntil(b":")).rstrip(b":")
        return json.loads(await self.reader.readexactly(int(size)))


@dataclass(slots=True, kw_only=True)
class Driven:
    """A person's browser."""

    session: Session

    async def open(self, url: str) -> None:
        await self.session.command("Navigate", url=url)

    async def press(self, name: str) -> None:
        await self._act("ElementClick", f"//*[self::a or self::button][contains(., '{name}')]")

    async def press_twice(self, name: str) -> None:
        """Double-click a button."""
        button = await self.find(f"//button[contains(., '{name}')]")
        move = {"type": "pointerMove", "x": 0, "y": 0, "origin": {ELEMENT: button}}
        click = [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        mouse = {"type": "pointer", "id": "mouse", "actions": [move, *click, *click]}
        try:
            await self.session.command("PerformActions", actions=[mouse])
        except CommandFailed as failure:
            # Firefox has clicked, but cannot report it: the next page has replaced this one.
            if "message reply cannot be cloned" not in str(failure):
                raise

    async def type(self, text: str, *, number: int = 1) -> None:
        """Replace the text of the field with this number on the page."""
        field = f"//*[@id='answer-{number}']"
        await self._act("ElementClear", field)
        await self._act("ElementSendKeys", field, text=text, value=list(text))

    async def reads(self, heading: str) -> None:
        """Wait for a page with this text in its heading."""
        await self._act("GetElementText", f"//h1[contains(normalize-space(.), '{heading}')]")

    async def _act(self, name: str, xpath: str, **arguments: Any) -> None:
        found = await self.find(xpath)
        await self.session.command(name, element=found, **arguments)

    async def find(self, xpath: str) -> str:
        """Return the id of the first such element, as soon as a page has one.

        The driver's own wait is not used: in WebKit, that wait never returns if another page loads.
        """
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    found = await self.session.command("FindElement", using="xpath", value=xpath)
                except CommandFailed:  # no such element, or another page is loading
                    await asyncio.sleep(0.05)
                else:
                    return str(found[ELEMENT])


@asynccontextmanager
async def process(*command: str, **variables: str) -> AsyncGenerator[None]:
    started = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, **variables},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        started.terminate()
        await started.wait()


def program(name: str) -> str:
    """Return the path of an installed program, or skip the test."""
    found = shutil.which(name)
    if not found:
        pytest.skip(f"no {name} on this machine")
    return found


@asynccontextmanager
async def driven(name: str, folder: Path, *, with_script: bool = True) -> AsyncGenerator[Driven]:
    """Start the browser with an empty profile in `folder`. WebKit always runs scripts."""
    start = {"chromium": _chromium, "firefox": _firefox, "webkit": _webkit}[name]
    async with start(folder, with_script=with_script) as session:
        yield Driven(session=session)


@asynccontextmanager
async def _chromium(folder: Path, *, with_script: bool) -> AsyncGenerator[Session]:
    port = free_port()
    arguments = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}"]
    arguments += [] if with_script else ["--blink-settings=scriptEnabled=false"]
    options = {"goog:chromeOptions": {"args": arguments, "binary": program("chromium")}}
    async with process(program("chromedriver"), f"--port={port}"), _http(port, options) as session:
        yield session


@asynccontextmanager
async def _webkit(folder: Path, *, with_script: bool) -> AsyncGenerator[Session]:
    assert with_script
    port, display = free_port(), f":{free_port()}"
    options = {
        "webkitgtk:browserOptions": {"binary": _mini_browser(), "args": ["--automation"]},
    }
    screen = (program("Xvfb"), display, "-screen", "0", "1280x800x24", "-nolisten", "tcp")
    variables = {"DISPLAY": display, "HOME": str(folder), "LIBGL_ALWAYS_SOFTWARE": "1"}
    driver = (program("WebKitWebDriver"), f"--port={port}")
    async with process(*screen), process(*driver, **variables), _http(port, options) as session:
        yield session


def _mini_browser() -> str:
    """Return the path of WebKitGTK's MiniBrowser, which is not on PATH, or skip the test."""
    for place in PLACES:
        for path in Path("/").glob(place.lstrip("/")):
            return str(path)
    pytest.skip("no MiniBrowser of WebKitGTK on this machine")


@asynccontextmanager
async def _http(port: int, options: Mapping[str, Any]) -> AsyncGenerator[HttpSession]:
    transport = httpx.AsyncHTTPTransport(retries=8)  # wait for the driver to listen
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", transport=transport, timeout=300
    ) as client:
        body = {"capabilities": {"alwaysMatch": options}}
        value = (await client.post("/session", json=body)).json()["value"]
        path = f"/session/{value['sessionId']}"
        yield HttpSession(client=client, path=path)
        await client.delete(path)


@asynccontextmanager
async def _firefox(folder: Path, *, with_script: bool) -> AsyncGenerator[Session]:
    settings = {"marionette.port": 0, "javascript.enabled": with_script}
    lines = (f'user_pref("{name}", {json.dumps(value)});\n' for name, value in settings.items())
    (folder / "user.js").write_text("".join(lines))
    command = (program("firefox-esr"), "--headless", "--marionette", "--no-remote")
    async with process(*command, "--profile", str(folder)):
        port = await _marionette_port(folder / "MarionetteActivePort")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        session = Marionette(reader=reader, writer=writer)
        try:
            await session.receive()  # the greeting
            await session.command("NewSession", capabilities={})
            yield session
        finally:
            writer.close()


async def _marionette_port(file: Path) -> int:
    """Return the port that Firefox writes into its profile when it listens."""
    async with asyncio.timeout(300):
        while not (text := _text_of(file)):  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.05)
    return int(text)


def _text_of(file: Path) -> str:
    return file.read_text() if file.exists() else ""
