"""The walker: an HTTP client that acts as a person and presses the first button of each page.

Risks: a page links to another site, where the walker would fill in strangers' forms. The walker
stops at any origin that the caller has not allowed.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import TextIO
from urllib.parse import urljoin, urlsplit

import httpx

from flows.elicitation.states import Status
from flows.question import DEFAULT_TIMEOUT

STEPS_AT_MOST = 12


class WalkFailed(Exception):
    """The pages did not lead to an end. The message says where they stopped."""


@dataclass(slots=True, kw_only=True)
class WalkedForm:
    """A form: its action, its preset fields, and the names of fields to fill in."""

    action: str
    fields: dict[str, str] = field(default_factory=dict[str, str])
    asks: list[str] = field(default_factory=list[str])
    is_pressed: bool = False  # the form's first named button is among the fields


class Page(HTMLParser):
    """The parts of a page that the walker needs."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.heading = ""
        self.forms: list[WalkedForm] = []
        self.faults: list[str] = []  # the errors in the form, from the list above it
        self.seconds_left: int | None = None
        self._form: WalkedForm | None = None
        self._is_heading = False
        self._lists_faults = False
        self.feed(html)
        self.close()
        self.heading = " ".join(self.heading.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        left = given.get("data-left")
        if left is not None and left.isdecimal():
            self.seconds_left = int(left)
        if tag == "h1":
            self._is_heading = True
        elif tag == "div" and given.get("class") == "faults":
            self._lists_faults = True
        elif tag == "li" and self._lists_faults:
            self.faults.append("")
        elif tag == "form" and (given.get("method") or "").lower() == "post":
            self._form = WalkedForm(action=given.get("action") or "")
            self.forms.append(self._form)
        elif self._form is not None and given.get("name"):
            self._fill(self._form, tag, given["name"] or "", given)

    @staticmethod
    def _fill(form: WalkedForm, tag: str, name: str, given: dict[str, str | None]) -> None:
        kind = given.get("type")
        is_chosen = kind == "hidden" or (kind in {"radio", "checkbox"} and "checked" in given)
        if is_chosen or (tag == "button" and not form.is_pressed):
            form.fields[name] = given.get("value") or ""
            form.is_pressed |= tag == "button"
        elif tag in {"input", "textarea"} and kind not in {"radio", "checkbox"}:
            form.asks.append(name)

    def handle_endtag(self, tag: str) -> None:
        if tag == "h1":
            self._is_heading = False
        elif tag in {"ul", "div"}:
            self._lists_faults = False
        elif tag == "form":
            self._form = None

    def handle_data(self, data: str) -> None:
        if self._is_heading:
            self.heading += data
        elif self._lists_faults and self.faults:
            self.faults[-1] += data.strip("\n")


async def walk(
    client: httpx.AsyncClient,
    link: str,
    *,
    answers: Mapping[str, str],
    also: Collection[str] = (),
    say: Callable[[str], None],
) -> None:
    """Walk from the link to a page without a form.

    The walk enters no origin except the link's own and those in `also`.

    Raises:
        WalkFailed: The pages lead to another origin, show an error, or do not end.
    """
    origins = {_origin(link), *also}
    method, address, fields = "GET", link, dict[str, str]()
    for _ in range(STEPS_AT_MOST):
        if _origin(address) not in origins:
            raise WalkFailed(
                f"The link leads to {_origin(address)}, where a person has to continue."
            )
        response = await client.request(
            method, address, data=fields if method == "POST" else None, follow_redirects=False
        )
        page = Page(response.text)
        location = response.headers.get("location", "") if response.has_redirect_location else ""
        outcome = f"on to {_shown(urljoin(address, location))}" if location else page.heading
        say(f"{method:4} {_shown(address):<16} {response.status_code}  {outcome}")
        if location:
            method, address = "GET", urljoin(address, location)
        elif response.is_error:
            raise WalkFailed(
                f"The pages stopped at: {page.heading or response.status_code}. If a form needs "
                "your own answer, open its link in a browser: run the command without --no-browser."
            )
        elif not page.forms:
            return
        else:
            form = page.forms[0]
            fields = form.fields | {name: answers.get(name, "demo") for name in form.asks}
            method, address = "POST", urljoin(address, form.action)
    raise WalkFailed(f"The pages did not end within {STEPS_AT_MOST} steps.")


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _shown(url: str) -> str:
    """Return a path without its tokens."""
    parts = urlsplit(url)
    path = "/e/…" if parts.path.startswith("/e/") else parts.path
    return path + "?…" * bool(parts.query)


# The demo's status display: the link's live status and the time left.
#
# On a terminal the display is one line that changes in place, otherwise one line for each change.

_TICK_SECONDS = 1.0
_CLEAR_LINE = "\r\x1b[K"
_WORDS = {
    Status.PENDING: "Waiting for you to open the link",
    Status.OPENED: "Opened; waiting until you are done there",
    Status.EXCHANGING: "Finishing",
    Status.ACCEPTED: "Done",
}


class DemoWaiting:
    """Shows one link's status until it is final or the task is cancelled."""

    def __init__(self, client: httpx.AsyncClient, link: str, *, out: TextIO) -> None:
        self._client = client
        self._link = link
        self._out = out
        self._is_terminal = out.isatty()
        self._ends_at = 0.0
        self._status = Status.PENDING

    async def show(self) -> None:
        """Show the status. Ignore HTTP errors, since the call continues without the display."""
        page = Page((await self._client.get(self._link)).text)
        left = page.seconds_left
        self._ends_at = asyncio.get_running_loop().time() + (
            left if left is not None else DEFAULT_TIMEOUT.total_seconds()
        )
        self._print()
        ticking = asyncio.create_task(self._tick()) if self._is_terminal else None
        try:
            await self._listen()
        except httpx.HTTPError:
            pass
        finally:
            if ticking is not None:
                ticking.cancel()
                self._out.write("\n")

    async def _listen(self) -> None:
        timeout = httpx.Timeout(10, read=60)
        async with self._client.stream("GET", f"{self._link}/live", timeout=timeout) as events:
            async for line in events.aiter_lines():
                _, is_data, status = line.partition("data: ")
                if is_data and status in set(Status) and status != self._status:
                    self._status = Status(status)
                    self._print()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            self._print()

    def _print(self) -> None:
        words = _WORDS.get(self._status, f"It is {self._status}")
        seconds = max(0, round(self._ends_at - asyncio.get_running_loop().time()))
        if not self._status.is_final:
            words = f"{words} ({seconds // 60}:{seconds % 60:02} left)"
        self._out.write(_CLEAR_LINE + words if self._is_terminal else f"{words}\n")
        self._out.flush()
