"""A server with metrics, a parser of its metrics page, and a tool for each kind of question."""

import asyncio
import contextvars
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import httpx
from mcp.server.mcpserver import MCPServer
from prometheus_client.parser import text_string_to_metric_families

from flows import Money, elicit
from webapp.testing import AskedPerson
from webapp.testing._application import URL

METRICS_TOKEN = "metrics-of-a-test-which-nobody-else-reads"
WATCHED = {"ELICIT_METRICS": METRICS_TOKEN}
WORD_CHARACTERS_AT_LEAST = 8
TYPED = "sesame-4711-open"  # what a person types, which must not leak


# The action of the person for each tool.
ACTS: Mapping[str, Callable[[AskedPerson], None]] = {
    "url": lambda person: person.completes(),
    "oauth": lambda person: person.connects(),
    "payment": lambda person: person.pays(),
    "form": lambda person: person.fills(response="Ada"),
    "confirm": lambda person: person.accepts(),
    "secret": lambda person: person.types(TYPED),
    "gate": lambda person: person.accepts(),
}
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def watched_tools() -> MCPServer:
    """Return a server with a tool for each kind of question, and a gated tool."""
    mcp = MCPServer("watched")

    @mcp.tool()
    async def ask_url() -> str:
        await elicit.url("Please choose your lunch.", "https://example.com/menu")
        return "chosen"

    @mcp.tool()
    async def ask_oauth() -> str:
        account = await elicit.oauth("github", scopes=["repo"])
        return f"connected {account.label}"

    @mcp.tool()
    async def ask_payment() -> str:
        receipt = await elicit.payment(Money("9.00", "EUR"), "three cups of tea")
        return f"paid {receipt.price}"

    @mcp.tool()
    async def ask_form() -> str:
        name = await elicit.form("Who are you?")
        return f"hello {len(name)}"

    @mcp.tool()
    async def ask_confirm() -> str:
        return str(await elicit.confirm("Shall the lamp be lit?"))

    @mcp.tool()
    async def ask_secret() -> str:
        typed = await elicit.secret("The key of your weather station, please.")
        return f"{len(typed)} letters"

    @mcp.tool()
    @elicit.gate
    async def ask_gate() -> str:
        return "done"

    return mcp


async def samples_of(person: AskedPerson) -> Samples:
    """Return the samples of the metrics page, by name and labels."""
    page = await page_of(person)
    assert page.status_code == 200, page.text
    return parsed(page.text)


async def page_of(person: AskedPerson, *, token: str | None = METRICS_TOKEN) -> httpx.Response:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    return await person._browser.get(f"{URL}/metrics", headers=headers)


def parsed(page: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, tuple(sorted(labels.items()))))


async def done(person: AskedPerson, *kinds: str) -> None:
    """Ask each of these questions and accept it."""
    for kind in kinds:
        ACTS[kind](person)
        result = await person.call(f"ask_{kind}")
        assert not result.is_error, result.text


class Elsewhere:
    """A person whose actions run in a separate task, without the context of the call."""

    def __init__(self, person: AskedPerson) -> None:
        self._person = person
        self.seen: list[str] = []  # the addresses, bodies and cookies of the browser's traffic
        for hooks in (person._browser.event_hooks,):
            hooks["request"] = [self._sent]
            hooks["response"] = [self._came]

    async def answer(self, context: Any, params: Any) -> Any:
        loop, empty = asyncio.get_running_loop(), contextvars.Context()
        return await loop.create_task(
            self._person.elicitation_callback(context, params), context=empty
        )

    async def _sent(self, request: httpx.Request) -> None:
        self.seen += [str(request.url), request.read().decode(), request.headers.get("cookie", "")]

    async def _came(self, reply: httpx.Response) -> None:
        self.seen.append(reply.headers.get("location", ""))
        self.seen += reply.headers.get_list("set-cookie")

    def words(self) -> set[str]:
        """Return each token, code, state, answer and cookie of the browser's traffic."""
        return {word for text in self.seen for word in _words(text)}


def _words(text: str) -> Iterable[str]:
    parts = urlsplit(text)
    found = [*parts.path.split("/"), *(value for _, value in parse_qsl(parts.query))]
    found += [value for _, value in parse_qsl(text)]
    found += re.split(r"[;,= ]", text) if "=" in text and "://" not in text else []
    for word in map(unquote, found):
        if len(word) >= WORD_CHARACTERS_AT_LEAST and re.search(r"\d", word):
            yield word
