"""A decision is shown completely at every door, or asking for the decision is refused."""

import re
from collections.abc import Mapping
from html import unescape
from typing import Any

import pytest

from flows import elicit
from flows.errors import InvalidQuestion
from flows.kinds.form import Form
from flows.question import MESSAGE_AT_MOST
from flows.schema.schema import schema_of
from flows.shown import DEPTH_AT_MOST, LINES_AT_MOST
from tests.doors.rules import ASKING, ENTERING, PROVIDERS, STORES, Door, Rule, every
from tests.doors.world import ERIN, Refused, World, world_tools
from tests.support.mcp_server import Page

IBAN = "DE02120300000000202051"
ENDING = f"Pay 9,000 EUR to {IBAN}?"
NOTE = " ".join(f"word{number}" for number in range(230))
MESSAGE = f"{NOTE}\n{ENDING}"
LONG = "x" * 90  # longer than the names that other pages show
LABELS = {"one": f"{LONG} and pay 1 EUR", "two": f"{LONG} and pay 9,000 EUR"}
NESTED: Any = 0
for _ in range(DEPTH_AT_MOST + 1):
    NESTED = [NESTED]
TOO_MUCH: Mapping[str, Mapping[str, Any]] = {
    f"more than {DEPTH_AT_MOST} deep": {"a": NESTED},
    f"{LINES_AT_MOST:,} at most": {"a": [0] * LINES_AT_MOST},
}


@world_tools
def _gated(server: Any) -> None:
    @server.tool()
    @elicit.gate
    def gated(what: dict[str, Any]) -> str:
        return "done"

    @server.tool()
    @elicit.gate(approver="finance")
    def gated_by_finance(what: dict[str, Any]) -> str:
        return "done"


def words_of(page: Page) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page.text)).split())


def questions() -> dict[str, tuple[dict[str, Any], tuple[str, ...]]]:
    """Return questions of each kind, and the texts that the page of each must show."""
    schema = {
        "type": "object",
        "properties": {
            "choice": {
                "type": "string",
                "title": f"Which {LONG} one?",
                "description": f"{NOTE[:900]} {ENDING}",
                "oneOf": [{"const": value, "title": title} for value, title in LABELS.items()],
            }
        },
    }
    scope = f"read:{LONG * 3}"
    return {
        "confirm": ({"message": MESSAGE, "arguments": {"iban": IBAN}}, (NOTE, ENDING)),
        "url": ({"message": MESSAGE, "url": "https://shop.example/"}, (NOTE, ENDING)),
        "secret": ({"message": MESSAGE}, (NOTE, ENDING)),
        "form": (
            {"message": MESSAGE, "schema": schema},
            (NOTE, ENDING, f"Which {LONG} one?", f"{NOTE[:900]} {ENDING}", *LABELS.values()),
        ),
        "payment": (
            {"amount": "9.00", "currency": "EUR", "what": f"{LONG} {LONG} to {IBAN}"},
            (f"{LONG} {LONG} to {IBAN}",),
        ),
        "oauth": (
            {"provider": "github", "scopes": [scope], "reason": ENDING, "account": LONG},
            (scope, ENDING, f"{LONG} , and no other"),
        ),
    }


async def _page_shows_the_whole_question(world: World, door: Door) -> None:
    # finding: XS3
    for kind, (about, shown) in questions().items():
        asked = await world.ask(door, {"kind": kind, **about})
        page = await world.page(asked)
        for words in shown:
            assert words in words_of(page), (kind, words)
        assert "…" not in words_of(page), kind
        await world.end_all()
    with pytest.raises(Refused, match=f"more than {MESSAGE_AT_MOST} characters"):
        await world.ask(door, {"kind": "confirm", "message": "m" * (MESSAGE_AT_MOST + 1)})


def _schema(**field: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"choice": {"type": "string", **field}}}


DROPPED: Mapping[str, Mapping[str, Any]] = {
    "field": _schema(description="word " * 400 + ENDING),
    "choice": _schema(oneOf=[{"const": "a", "description": ENDING}]),
    "items": _schema(type="array", items={"enum": ["a"], "description": ENDING}),
    "root": {**_schema(), "description": ENDING},
    "title": {**_schema(), "title": ENDING},
    "alike": _schema(oneOf=[{"const": str(n), "title": "Pay 1 EUR" + " " * n} for n in range(2)]),
}


async def _texts_of_a_schema_are_shown_or_refused(world: World, door: Door) -> None:
    # finding: XS3
    await _page_shows_the_whole_question(world, door)
    for schema in DROPPED.values():
        with pytest.raises(Refused, match="cannot be asked as a form"):
            await world.ask(door, {"kind": "form", "message": "Which one?", "schema": schema})
    longest = f"{'word ' * 395}{ENDING[:-1]}."[-MESSAGE_AT_MOST:].strip()
    secret = {**_schema(description=longest, writeOnly=True)}
    kinds: dict[str, dict[str, Any]] = {
        "form": _schema(description=longest, format="date-time"),
        "secret": secret,
    }
    for kind, schema in kinds.items():
        asked = await world.ask(door, {"kind": kind, "message": "Which one?", "schema": schema})
        page = words_of(await world.page(asked))
        assert " ".join(longest.split()) in page, kind
        assert "…" not in page, kind
        await world.end_all()


async def _too_large_arguments_are_refused(world: World, door: Door) -> None:
    # finding: XS4
    for words, arguments in TOO_MUCH.items():
        with pytest.raises(Refused, match=re.escape(words)):
            await world.ask(door, {"kind": "confirm", "message": "Sure?", "arguments": arguments})
    assert not await world.open(door)


async def _too_large_arguments_are_refused_at_gate(world: World, door: Door) -> None:
    # finding: XS4
    await _too_large_arguments_are_refused(world, door)
    for tool in ("gated", "gated_by_finance"):
        for words, arguments in TOO_MUCH.items():
            text = await world.call(door, tool, what=arguments)
            assert words in text
            assert "Nobody was asked" in text
    assert not await world.open(door)
    deep: Any = 0
    for _ in range(900):
        deep = {"a": deep}
    with pytest.raises(Refused, match="nested more than 150 deep"):
        await world.call(door, "gated", what=deep)


async def _approvers_see_the_whole_request(world: World, door: Door) -> None:
    # finding: XS3
    asked = await world.asked_of_finance({"iban": IBAN, "note": NOTE}, MESSAGE)
    erin = await world.browser(ERIN)
    listed = words_of(await erin.visit(f"{world.env.here.url}/inbox"))
    assert f"{NOTE} {ENDING}" in listed
    page = words_of(await erin.visit((await world.addresses_of_finance())[0]))
    own = words_of(await world.page(world.known(asked, Door.TOOL_2026)))
    for seen in (page, own):
        assert f"{NOTE} {ENDING}" in seen
        assert IBAN in seen
        assert f"note {NOTE}" in seen
    if door is Door.INBOX:
        person = await world.person_alone(ERIN)
        (answer, *_) = (await person.send("GET", "/api/inbox")).json()["requests"]
        assert answer["message"] == MESSAGE
        assert answer["arguments"] == {"iban": IBAN, "note": NOTE}


async def _approving_key_reads_the_whole_request(world: World, _: Door) -> None:
    # finding: XS3
    about = {"kind": "confirm", "message": MESSAGE, "arguments": {"note": NOTE}}
    asked = await world.ask(Door.API, about)
    answer = await world.desk.read(asked.id)
    assert (answer["message"], answer["arguments"]) == (MESSAGE, {"note": NOTE})


async def _a_hook_cannot_ask_for_more(_: World, __: Door) -> None:
    # finding: XS4
    schema = schema_of({"type": "object", "properties": {}})
    for arguments in TOO_MUCH.values():
        with pytest.raises(InvalidQuestion):
            Form(message="Sure?", schema=schema, arguments=arguments)


RULES = [
    Rule(
        id="shown-whole",
        says="A decision is shown completely, or the request for the decision is refused",
        source="promise 13",
        cells={
            **every(ASKING, _texts_of_a_schema_are_shown_or_refused),
            Door.PAGE: _page_shows_the_whole_question,
            Door.APPROVER: _approvers_see_the_whole_request,
            Door.INBOX: _approvers_see_the_whole_request,
            Door.APPROVING_KEY: _approving_key_reads_the_whole_request,
            Door.CLIENT_FORM: "if the client's form might not show the question completely, the "
            "server asks on its own page: "
            "tests/webapp/mcp/test_what_is_shown.py",
            Door.TRUSTED_CODE: "custom code cannot decide for a person: it completes only visits "
            "and forms",
            Door.HOOK: "a question that a hook changes is validated again, with the same limits",
            Door.OWN_PAGES: "these pages list only decisions that were already made",
            Door.COMMAND: "a command cannot make a decision",
            Door.EVENT: "an event never contains the message",
            **every(ENTERING, "it cannot make a decision"),
            **every(PROVIDERS, "a provider shows only its own pages"),
            **every(STORES, "a store returns the question unchanged"),
        },
    ),
    Rule(
        id="bounded-as-shown",
        says="The size of a question is limited as it appears on the page, and "
        "a larger question is refused when it is asked",
        source="promise 13",
        cells={
            Door.TOOL_2025: _too_large_arguments_are_refused_at_gate,
            Door.TOOL_2026: _too_large_arguments_are_refused_at_gate,
            **every(
                (Door.TASK, Door.BLOCK, Door.API, Door.CLIENT), _too_large_arguments_are_refused
            ),
            Door.HOOK: _a_hook_cannot_ask_for_more,
            **every(
                (Door.PAGE, Door.APPROVER, Door.INBOX, Door.CLIENT_FORM, Door.APPROVING_KEY),
                "it shows only questions that passed the limits when they were "
                "asked: tests/webapp/pages/test_bounds.py counts bytes and steps",
            ),
            Door.TRUSTED_CODE: "an answer has its own size limit, and no person sees it",
            Door.OWN_PAGES: "the list of approvals shows at most 200 characters of the arguments",
            Door.COMMAND: "a command prints only the message, which has a size limit",
            Door.EVENT: "an event never contains the message",
            **every(ENTERING, "the server limits the size of each request here when it arrives"),
            **every(PROVIDERS, "a provider's response has a size limit, and no page shows it"),
            **every(STORES, "a row has its own size limit"),
        },
    ),
]
