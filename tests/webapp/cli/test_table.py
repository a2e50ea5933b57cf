"""The output of list commands: columns on a terminal, tab-separated lines in a pipe, or JSON."""

import argparse
import json
import re
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from rich.cells import cell_len

from webapp.cli.main import COMMANDS, parser_for
from webapp.cli.table import (
    SHORTEST_ID,
    Table,
    age,
    find_by_prefix,
    lines_of,
    shortened,
    show_facts,
    show_table,
)
from webapp.command import CommandRefused

DOCUMENT = Path(__file__).parents[3] / "docs/reference/commands.md"
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
IDS = st.lists(st.text("ab-", min_size=24, max_size=24), min_size=1, unique=True)


class Cake(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    is_sweet: bool = True
    cut_at: datetime | None = None
    baked_at: datetime = NOW - timedelta(minutes=3)
    parts: list[str] = []


def cakes(*rows: Cake) -> Table[Cake]:
    columns = ("id", "name", "is_sweet", "cut_at", "baked_at")
    return Table(rows=rows, columns=columns, nothing="No cake.")


APPLE = Cake(id="a" * 24, name="apple")
PLUM = Cake(id="b" * 24, name="plum", is_sweet=False, cut_at=NOW + timedelta(days=2))


def test_terminal_list_has_columns_short_ids_and_ages() -> None:
    assert lines_of(cakes(APPLE, PLUM), width=80, now=NOW) == [
        "ID        NAME   SWEET  CUT        BAKED",
        "aaaaaaaa  apple  yes    -          3 min ago",
        "bbbbbbbb  plum   no     in 2 days  3 min ago",
    ]


def test_piped_list_has_full_values_and_no_header() -> None:
    first, second = lines_of(cakes(APPLE, PLUM), width=None, now=NOW)
    assert first.split("\t") == ["a" * 24, "apple", "yes", "", "2026-03-01T11:57:00Z"]
    assert second.split("\t")[3] == "2026-03-03T12:00:00Z"


def test_json_list_is_an_array_with_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    for rows in ((APPLE, PLUM), ()):
        show_table(cakes(*rows), as_json=True, now=NOW)
        answer = json.loads(capsys.readouterr().out)
        assert [(one["id"], one["parts"]) for one in answer] == [(row.id, []) for row in rows]
    show_table(cakes(), as_json=False, now=NOW)
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", "No cake.\n")


@given(name=st.text(), width=st.integers(40, 120))
def test_any_name_fits_its_line_and_the_terminal_width(name: str, width: int) -> None:
    table = cakes(Cake(id="a" * 24, name=name), PLUM)
    lines = lines_of(table, width=width, now=NOW)
    assert len(lines) == 3
    assert all(line.isprintable() and cell_len(line) <= width for line in lines)
    assert all(
        line.replace("\t", "").isprintable() for line in lines_of(table, width=None, now=NOW)
    )


def test_long_names_are_cut_but_ids_and_ages_are_not() -> None:
    long = Cake(id="a" * 24, name="a cake of many, many layers")
    _, line = lines_of(cakes(long), width=50, now=NOW)
    assert line == "aaaaaaaa  a cake of many, …  yes    -    3 min ago"
    wide = Cake(id="a" * 24, name="蛋糕" * 20)
    _, line = lines_of(cakes(wide), width=50, now=NOW)
    assert cell_len(line) <= 50
    assert line.endswith("3 min ago")


@given(text=st.text())
def test_json_output_escapes_control_characters(text: str) -> None:
    with redirect_stdout(StringIO()) as output:
        show_table(cakes(Cake(id="a", name=text)), as_json=True, now=NOW)
    assert all(32 <= ord(sign) < 127 or sign == "\n" for sign in output.getvalue())
    assert json.loads(output.getvalue())[0]["name"] == text


def test_record_is_shown_by_fields_with_multiline_text_last(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cake = Cake(id="a", name="two\nlayers\x1b", parts=["dough", "plums"])
    show_facts(cake, as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "id        a",
        "is_sweet  yes",
        "baked_at  2026-03-01T11:57:00Z",
        "parts     dough, plums",
        "",
        "two",
        "layers\N{REPLACEMENT CHARACTER}",
    ]
    show_facts(cake, as_json=True)
    assert json.loads(capsys.readouterr().out)["parts"] == ["dough", "plums"]


class Party(Struct, frozen=True, kw_only=True):
    id: str
    guests: list[dict[str, Any]]


def test_nested_rows_are_shown_field_by_field(capsys: pytest.CaptureFixture[str]) -> None:
    ada = {"name": "Ada\nid  b", "likes": ("plums",), "came": True, "left_at": None}
    show_facts(Party(id="a", guests=[ada, {"name": "Eve"}]), as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "id  a",
        "",
        "guests 1",
        "  name   Ada id b",
        "  likes  plums",
        "  came   yes",
        "",
        "guests 2",
        "  name  Eve",
    ]


# Ids.


@given(ids=IDS)
def test_short_id_resolves_to_its_full_id(ids: list[str]) -> None:
    there = {id: id for id in ids}
    for id, short in shortened(ids).items():
        assert find_by_prefix(short, there, what="cake", shown_by="cakes list") == id
        assert len(short) >= SHORTEST_ID


def test_ambiguous_short_id_lists_the_matches() -> None:
    there = {id: id for id in ("cake-one" + "x" * 16, "cake-two" + "x" * 16, "z" * 24)}
    with pytest.raises(CommandRefused) as refused:
        find_by_prefix("cake", there, what="cake", shown_by="cakes list")
    assert str(refused.value) == "2 ids begin with cake: cake-one, cake-two. Write one of them."
    with pytest.raises(CommandRefused) as refused:
        find_by_prefix("b", there, what="cake", shown_by="cakes list")
    assert str(refused.value) == "There is no cake b: elicit cakes list shows them."
    assert find_by_prefix("z", there, what="cake", shown_by="cakes list") == "z" * 24


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "just now"),
        (-59, "just now"),
        (59, "in seconds"),
        (-180, "3 min ago"),
        (240, "in 4 min"),
        (-3600, "1 h ago"),
        (-86400, "1 day ago"),
        (3 * 86400, "in 3 days"),
        (-65 * 86400, "2 months ago"),
        (-800 * 86400, "2 years ago"),
    ],
)
def test_age_is_shown_in_a_single_unit(seconds: int, words: str) -> None:
    assert age(NOW + timedelta(seconds=seconds), NOW) == words


# All lists.


Commands = dict[str, argparse.ArgumentParser]


def within(parser: argparse.ArgumentParser) -> Commands:
    choices = (each.choices for each in parser._actions if isinstance(each.choices, dict))
    return {name: command for each in choices for name, command in each.items()}


def commands() -> Commands:
    """Return the parsers of all commands, also of nested ones such as "pending list"."""
    found = Commands()
    for name in COMMANDS:
        command = within(parser_for([name]))[name]
        found[name] = command
        found |= {f"{name} {word}": inner for word, inner in within(command).items()}
    return found


def test_every_list_has_json_output_with_documented_fields() -> None:
    document = DOCUMENT.read_text("utf-8")
    reported = {
        name: re.findall(r"`(\w+)`", fields)
        for name, fields in re.findall(r"(?m)^\| `elicit ([^`]+)` \| (.+) \|$", document)
    }
    rows = {name: parser.get_default("of") for name, parser in commands().items()}
    lists = {name for name in rows if name.endswith(" list") or name == "settings"}
    assert lists <= {name for name, row in rows.items() if row is not None}
    assert {name: list(row.__struct_fields__) for name, row in rows.items() if row} == reported
