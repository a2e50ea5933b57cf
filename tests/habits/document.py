"""Two sections of docs/how-to/providers.md: the habits of providers, and wrong set-ups."""

from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Final

from flows.providers.catalogue import CATALOGUE
from tests.habits.habit import Habit, Known, Stage
from tests.habits.rows import KNOWN, PLAYED
from tests.habits.setups import SETUPS, SIGN_INS, Setup, SignInSetup

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "how-to" / "providers.md"
BEGIN: Final = "<!-- Written by `python -m tests.habits` from here. -->\n"
_HEAD: Final = """
## Habits of providers

OAuth providers differ from the standards in the ways below, according to public reports. A test
checks each row, which [tests/habits](../../tests/habits) contains.

In the tests of the first table, a simulated provider insists on the habit. With the declaration, a
part of the provider's table in `elicit.toml`, a person connects an account there, a tool uses it,
the server refreshes it, and `elicit doctor` reports no problem. The last column says what happens
without the declaration.

| habit | for example at | declaration | without it |
|---|---|---|---|
"""
_KNOWN: Final = """
The second table has habits that a test of its own simulates:

| habit | for example at | declaration | result | test |
|---|---|---|---|---|
"""
_SETUPS: Final = """
## Wrong set-ups

If people cannot connect accounts or sign in, search these tables for a text that you see: in
`elicit doctor`, in the log, in the error that the model reads, or on the person's page. The first
column then says what is wrong. A cell has parts of the text, with `...` between them. If a cell is
empty, there is no such text. The texts of the second column are in the log as well, in lines
`registration.wrong` at the start of the server. The third column has the log when somebody uses the
provider. A test tries each row at a simulated provider.

The first table is about accounts:

| set-up | `elicit doctor`, log at start | log at use | the model reads | the person reads |
|---|---|---|---|---|
"""
_SIGN_INS: Final = """
The second table is about the issuer where people sign in (`ELICIT_ISSUER`). The fourth column is
the HTTP response to a call at `/mcp`:

| set-up | `elicit doctor`, log at start | log at use | `/mcp` answers | the person reads |
|---|---|---|---|---|
"""


def document() -> str:
    """Return the page with both sections written again. The text before them stays unchanged."""
    before, begin, _ = DOCUMENT.read_text("utf-8").partition(BEGIN)
    assert begin, f"{DOCUMENT} has no {BEGIN!r}"
    habits = f"{_HEAD}{_lines(map(_played, PLAYED.items()))}{_KNOWN}{_known(KNOWN)}"
    setups = _lines(_setup(name, one) for name, one in SETUPS.items())
    sign_ins = _lines(_sign_in(name, one) for name, one in SIGN_INS.items())
    return f"{before}{BEGIN}{habits}{_SETUPS}{setups}{_SIGN_INS}{sign_ins}"


def _setup(name: str, one: Setup) -> str:
    model = "the call waits" if one.model == "waits" else one.model or ""
    person = "the provider's own page" if one.ends_at_provider else one.person
    return f"| {name} | {_words_of(one.found)} | {_words_of(one.used)} | {model} | {person} |"


def _sign_in(name: str, one: SignInSetup) -> str:
    model = "" if one.call == HTTPStatus.OK else f"{one.call}: {one.model}"
    person = "the issuer's own page" if one.ends_at_provider else one.person or "signed in"
    return f"| {name} | {_words_of(one.found)} | {_words_of(one.used)} | {model} | {person} |"


def _words_of(parts: Sequence[str] | None) -> str:
    return " ... ".join(f"`{part}`" for part in parts or ())


def _played(row: tuple[str, Habit]) -> str:
    name, habit = row
    lines = habit.declares.splitlines()
    stage = habit.stage()
    without = habit.without if stage is Stage.NEVER and habit.without else stage
    if stage is Stage.AFTER:
        without = f"{stage}: {habit.without}"
    if not habit.declares:
        without = "works without a declaration"
    return f"| {name} | {_at(habit.at)} | {', '.join(map(_code, lines))} | {without} |"


def _known(rows: Mapping[str, Known]) -> str:
    return _lines(
        f"| {name} | {_at(row.at)} | {_code(row.declares)} | {row.result} | `{row.test}` |"
        for name, row in rows.items()
    )


def _at(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" if name in CATALOGUE else name for name in names) or "not named"


def _code(text: str) -> str:
    return f"`{text}`" if text and not text.startswith("`") else text


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
