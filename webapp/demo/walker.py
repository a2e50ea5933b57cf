"""The walker: an HTTP client that acts as a person and presses the first button of each page.

Risks: a page links to another site, where the walker would fill in strangers' forms. The walker
stops at any origin that the caller has not allowed.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import urljoin, urlsplit

import httpx

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
        self.seconds_left: int | None = None
        self._form: WalkedForm | None = None
        self._is_heading = False
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
        elif tag == "form":
            self._form = None

    def handle_data(self, data: str) -> None:
        if self._is_heading:
            self.heading += data


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
