"""The first rules: a link belongs to its person, and opening an address changes nothing."""

import re

from tests.doors.rules import (
    ANSWERING,
    ASKING,
    ENTERING,
    PROVIDERS,
    STORES,
    Door,
    Rule,
    every,
)
from tests.doors.world import ANN, ERIN, World

QUESTION = {"kind": "confirm", "message": "Sell the house?", "arguments": {"price": 5}}


async def _shows_a_stranger_nothing(world: World, door: Door) -> None:
    asked = await world.ask(door, QUESTION)
    if asked.subject == ANN:
        stranger = await world.env.here.browser("bob")
    else:
        stranger = await world.browser(ERIN)
    page = await stranger.visit(asked.link)
    assert "house" not in page.text
    assert "house" in (await world.page(asked)).text


async def _get_requests_do_not_change_question(world: World, door: Door) -> None:
    asked = await world.ask(door, QUESTION)
    before = await world.state(asked)
    person = await world.browser(asked.subject)
    page = await person.visit(asked.link)
    for place in {asked.link, *page.actions}:
        for method in ("GET", "HEAD", "OPTIONS"):
            await person.browser.request(method, place)
    assert await world.state(asked) == before


async def _get_requests_of_approver_decide_nothing(world: World, _: Door) -> None:
    before = await world.asked_of_finance({"order": "o8"}, "Pay it back?")
    erin = await world.browser(ERIN)
    address = (await world.addresses_of_finance())[0]
    page = await erin.visit(address)
    for place in {address, *page.actions}:
        for method in ("GET", "HEAD", "OPTIONS"):
            await erin.browser.request(method, place)
    assert await world.env.here.service.elicitations.get(before.id) == before


async def _get_requests_to_list_actions_change_nothing(world: World, _: Door) -> None:
    asked = await world.ask(Door.API, QUESTION)
    person = await world.browser(ANN)
    before = await world.state(asked)
    for path in ("/", "/connections", "/payments"):
        text = (await person.browser.get(f"{world.env.here.url}{path}")).text
        for action in re.findall(r'action="(/[^"]+)"', text):
            await person.browser.get(f"{world.env.here.url}{action}")
    assert await world.state(asked) == before


RULES = [
    Rule(
        id="opener",
        says="A link shows the question only to the person who is asked",
        source="promise 5",
        cells={
            **every(ASKING, _shows_a_stranger_nothing),
            Door.HOOK: "a hook receives the question before it is asked, and does not "
            "open the link",
            **every(ANSWERING, "it answers a question and gives nobody else access to it"),
            **every(
                ENTERING,
                "it identifies the visitor, and the link compares the visitor "
                "with the person who is asked",
            ),
            **every(PROVIDERS, "it never shows a question"),
            **every(STORES, "a store contains only encrypted rows, and identifies nobody"),
            Door.OWN_PAGES: "each page lists only records of the person who is signed in",
            Door.EVENT: "the server sends events only to the operator's addresses, and "
            "they never contain the message",
            Door.COMMAND: "the operator runs commands, and has the store and its key",
        },
    ),
    Rule(
        id="look",
        says="Opening an address (GET, HEAD, OPTIONS) changes nothing",
        source="promise 6",
        cells={
            **every(ASKING, _get_requests_do_not_change_question),
            Door.PAGE: _get_requests_do_not_change_question,
            Door.APPROVER: _get_requests_of_approver_decide_nothing,
            Door.OWN_PAGES: _get_requests_to_list_actions_change_nothing,
            **every(
                (Door.CLIENT_FORM, Door.INBOX, Door.APPROVING_KEY, Door.TRUSTED_CODE),
                "answers arrive as a POST or as a call, so a link scanner has no address to open",
            ),
            Door.HOOK: "a hook has no address to open",
            **every(ENTERING, "it starts with a POST: tests/attacks/test_signed_in.py"),
            Door.CALLBACK: "the OAuth state in its address works once, and only in the "
            "browser that started",
            Door.PROXY: "each of its addresses requires an API key, which no browser has",
            Door.WEBHOOK: "it accepts only POST",
            Door.EVENT: "it only sends requests, and has no address to open",
            Door.COMMAND: "a command has no address to open",
            **every(STORES, "a store has no address for a browser"),
        },
    ),
]
