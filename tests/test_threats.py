"""docs/threats.md is what its generator makes, and says nothing that is not so."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.attacks import threats
from tests.attacks.attack import Attack, Open
from tests.attacks.bounds import BOUNDS, Bound, milliseconds
from tests.attacks.threats import HOUSE, SECTIONS, document, sections

ATTACKS = HOUSE / "tests" / "attacks"
ROWS = [(section, row) for section in sections() for row in section.rows]


@cache
def names_in(path: str) -> list[str]:
    """The names of the tests in a file, read off its syntax tree."""
    tree = ast.parse((HOUSE / path).read_text("utf-8"))
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    ]


def test_the_document_is_what_the_generator_makes() -> None:
    written = (HOUSE / "docs" / "threats.md").read_text("utf-8")
    assert written == document(), f"make it anew: {threats.COMMAND}"
    assert threats.COMMAND in (HOUSE / "CONTRIBUTING.md").read_text("utf-8")


def test_every_module_of_attacks_has_its_place_in_the_document() -> None:
    assert sorted(SECTIONS) == sorted(path.stem for path in ATTACKS.glob("test_*.py"))


def test_every_test_of_an_attack_belongs_to_a_row() -> None:
    for section in sections():
        told = [name for row in section.rows for name in row.tests]
        assert sorted(told) == sorted(names_in(section.path)), section.path


def test_every_row_of_what_is_stopped_names_a_test() -> None:
    for section, row in ROWS:
        if isinstance(row.declared, Attack):
            assert row.tests or row.declared.elsewhere, (section.path, row)


def test_every_test_and_every_file_that_a_row_names_is_there() -> None:
    for _, row in ROWS:
        for named in row.declared.elsewhere:
            path, *_, name = named.split("::")
            assert name in names_in(path), named
        gone = [path for path in row.declared.where if not Path(HOUSE, path).is_file()]
        assert not gone, row.declared


def test_what_is_stopped_and_what_is_not_stand_apart_and_every_row_says_something_new() -> None:
    for section in sections():
        assert len({type(row.declared) for row in section.rows}) == 1, section.path
    for kind, parts in ((Attack, ("who", "how", "stopped")), (Open, ("what", "why", "instead"))):
        declared = [row.declared for _, row in ROWS if isinstance(row.declared, kind)]
        said = [tuple(getattr(each, part) for part in parts) for each in declared]
        assert len(set(said)) == len(said)
        for words in (word for each in said for word in each):
            assert words.strip() == words
            assert words
            assert not {"|", "\n"} & set(words)
            assert not words.endswith(".")


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: bound.what)
def test_what_a_stranger_sends_holds_nobody_up(bound: Bound) -> None:
    # finding: S29
    assert milliseconds(bound) < 250
