"""`elicit connect`: the text in the terminal before any action, and the choices of the user."""

import io
import sys
from datetime import timedelta
from typing import cast

import pytest
from msgspec.structs import replace

from flows.elicitation.states import Elicitation, Json
from flows.errors import Failed, NotConfigured
from tests.support.oauth_env import OAuthEnv, oauth_env, process
from webapp.cli.connect import (
    Terminal,
    _choose,
    _is_right,
    chosen,
    connect_by_code,
    list_waiting,
    open_questions,
    plain,
)
from webapp.stores.sqlite import MemoryStore

ESCAPES = "\x1b[2J\x1b]0;owned\x07\r\n\x9b1mrm -rf\u202egpj.\x00"


def with_terms(asked: Elicitation, **terms: str) -> Elicitation:
    """Return the elicitation with these terms replaced."""
    stored = cast("dict[str, Json]", asked.request.terms)
    return replace(asked, request=replace(asked.request, terms={**stored, **terms}))


class Desk:
    """A terminal whose user makes the choice `chooses` and must not be asked anything else."""

    def __init__(self, *, chooses: int | None = None) -> None:
        self.printed: list[str] = []
        self.of: list[int] = []
        self._chooses = chooses

    @property
    def terminal(self) -> Terminal:
        return Terminal(
            say=self.printed.append,
            choose=self._choose,
            is_right=self._must_not_confirm,
            pause=self._must_not_pause,
        )

    async def _choose(self, number: int) -> int | None:
        self.of.append(number)
        return self._chooses

    async def _must_not_confirm(self, question: str) -> bool:
        raise AssertionError(question)

    async def _must_not_pause(self, duration: timedelta) -> None:
        raise AssertionError(duration)


async def ask_three(here: OAuthEnv) -> list[Elicitation]:
    for n, tool in enumerate(("list", "count", "export")):
        await here.ask("repo", tool=tool, arguments=n).link()
        here.clock.tick(minutes=1)
    return await open_questions(here.service, provider="GitHub")


async def test_open_questions_are_listed_and_chosen_question_is_returned() -> None:
    async with oauth_env() as here:
        waiting = await ask_three(here)
        desk = Desk(chooses=2)
        asked = await chosen(here.service, waiting, desk.terminal)
        assert asked is not None
        assert asked.request.tool == "count"
        assert desk.of == [3]
        assert desk.printed == [
            "1. list of shop: GitHub repo (3 min ago)",
            "2. count of shop: GitHub repo (2 min ago)",
            "3. export of shop: GitHub repo (1 min ago)",
        ]
        listed = (await list_waiting(here.service, provider="github")).rows
        assert [(row.tool, row.provider) for row in listed] == [
            ("list", "github"),
            ("count", "github"),
            ("export", "github"),
        ]


@pytest.mark.parametrize("number", [None, 0, 4, -1])
async def test_number_outside_list_chooses_no_question(number: int | None) -> None:
    async with oauth_env() as here:
        waiting = await ask_three(here)
        assert await chosen(here.service, waiting, Desk(chooses=number).terminal) is None


async def test_single_question_is_chosen_without_list() -> None:
    async with oauth_env() as here:
        await here.ask("repo").link()
        waiting = await open_questions(here.service, provider=None)
        desk = Desk()
        assert await chosen(here.service, waiting, desk.terminal) == waiting[0]
        assert desk.printed == []
        assert await open_questions(here.service, provider="gitlab") == []


async def test_control_characters_of_tool_and_server_names_are_not_printed() -> None:
    async with oauth_env() as here:
        for n in range(2):
            name = f"{ESCAPES}{n}"
            await here.ask(
                "repo", tool=name, server=name, account=f"octocat{n}", arguments=n
            ).link()
        waiting = await open_questions(here.service, provider=None)
        desk = Desk(chooses=1)
        asked = await chosen(here.service, waiting, desk.terminal)
        assert asked is not None
        with pytest.raises(Failed):  # the sandbox has no device flow
            await connect_by_code(here.service, asked, desk.terminal)
        assert len(desk.printed) == 3
        for line in "\n".join(desk.printed).split("\n"):
            assert line.isprintable()
            assert len(line) < 400
        assert "rm -rf" in desk.printed[-1]


async def test_reason_is_quoted_as_tool_text_on_a_single_line() -> None:
    async with oauth_env() as here:
        call = here.ask("repo", reason=f"I sort them.\n{ESCAPES}")
        await call.link()
        (asked,) = await open_questions(here.service, provider=None)
        desk = Desk()
        with pytest.raises(Failed):
            await connect_by_code(here.service, asked, desk.terminal)
        *_, reason = desk.printed[0].split("\n")
        assert reason.startswith('The tool says: "I sort them. ')
        assert reason.isprintable()


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("octocat", "octocat"),
        ("two\nlines\tand more", "two lines and more"),
        ("\x1b[31mred", "\N{REPLACEMENT CHARACTER}[31mred"),
        ("a\u202eb", "a\N{REPLACEMENT CHARACTER}b"),
        ("x" * 81, "x" * 79 + "…"),
        ("", ""),
    ],
)
def test_untrusted_text_is_shortened_to_a_single_printable_line(words: str, shown: str) -> None:
    assert plain(words) == shown
    assert len(plain("y" * 1_000_000)) == 80


async def test_connecting_sandbox_account_without_sandbox_is_refused_with_reason() -> None:
    store = MemoryStore()
    async with oauth_env(store=store) as here:
        await here.ask("repo").link()
        opening = process(
            here.settings,
            store=store,
            clock=here.clock,
            gate=here.gate,
            sandbox=here.sandbox,
            played=False,
        )
        async with opening as there:
            (asked,) = await open_questions(there.service, provider=None)
            with pytest.raises(Failed, match="an account of the sandbox"):
                await connect_by_code(there.service, asked, Desk().terminal)


async def test_missing_or_changed_client_credentials_are_named_in_error() -> None:
    async with oauth_env() as here:
        await here.ask("repo").link()
        (asked,) = await open_questions(here.service, provider=None)
        asked = with_terms(asked, client_id="our-own-id", provider="elsewhere")
        with pytest.raises(NotConfigured, match="ELICIT_ELSEWHERE_CLIENT_ID"):
            await connect_by_code(here.service, asked, Desk().terminal)
        asked = with_terms(asked, client_id="our-own-id", provider="github")
        with pytest.raises(Failed, match="uses a different client id at"):
            await connect_by_code(here.service, asked, Desk().terminal)


@pytest.mark.parametrize(
    ("typed", "number", "is_right"),
    [("2\n", 2, False), (" y \n", None, True), ("YES\n", None, True), ("", None, False)]
    + [(text, None, False) for text in ("-1\n", "²\n", "99999\n", "no\n")],
)
async def test_typed_input_is_parsed_as_number_or_confirmation_or_ignored(
    typed: str, number: int | None, is_right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    assert await _choose(3) == number
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    assert await _is_right("?") is is_right
