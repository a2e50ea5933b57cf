"""The words of the code: how docstrings begin, and which names in docstrings must exist."""

import ast
import builtins
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

HOUSE = Path(__file__).parent.parent
FOLDERS = ("flows", "webapp", "tests", "benchmarks", "examples", "docs")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
CLAUSE = re.compile(
    r"(What|Whether|Whoever|Whatever|Whose|Which|Who|That|Of|By|As|How|Where|When|With|Without|If"
    r"|For|From|To|In|On|At|Also|Else|One|Those|These|They|Their|Its?|Nobody|Nothing|None|No|All"
    r"|Every|Each|The same|Not|And|Or|But|So|Once|Only|Until|Till|Since|Because|Though|Ours?|Raises"
    r"|Told|Kept|Somebody)\b"
)
RAISED = re.compile(
    r"\bRaises? ((?:\w+\.)*[A-Z]\w+(?:(?:,| and|, and| or|, or) (?:\w+\.)*[A-Z]\w+)*)"
)
SECTION = re.compile(r"^Raises:\n((?:    .*\n?|\n)+)", re.MULTILINE)
QUOTED = re.compile(r"`([A-Za-z_][\w.]*)(?:\(\))?`")
BY_OTHERS = {"IntegrityError", "BrokenResourceError"}  # errors of sqlite3 and anyio


class Docstring(NamedTuple):
    place: str
    text: str


@cache
def read() -> tuple[tuple[Docstring, ...], frozenset[str]]:
    """Return all docstrings, and all words of the code without docstrings and comments."""
    docstrings = list[Docstring]()
    words = set[str]()
    for path in (path for folder in FOLDERS for path in sorted((HOUSE / folder).rglob("*.py"))):
        source = path.read_text("utf-8")
        lines = source.splitlines()
        for node in ast.walk(ast.parse(source)):
            text = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
            if text:
                assert isinstance(node, DOCUMENTED)
                first, last = node.body[0].lineno, node.body[0].end_lineno or 0
                docstrings.append(Docstring(f"{path.relative_to(HOUSE)}:{first}", text))
                lines[first - 1 : last] = [""] * (last - first + 1)
        code = (line.split("  # ")[0] for line in lines if not line.lstrip().startswith("#"))
        words.update(re.findall(r"\w+", "\n".join(code)))
    return tuple(docstrings), frozenset(words)


def raised_in(text: str) -> set[str]:
    """Return the names of the errors that a docstring says are raised."""
    names = {
        name.split(".")[-1]
        for found in RAISED.finditer(text)
        for name in re.findall(r"[\w.]*\b[A-Z]\w+", found[1])
    }
    if section := SECTION.search(text):
        names |= set(re.findall(r"^    ([A-Z]\w+):", section[1], re.MULTILINE))
    return names


def test_no_docstring_begins_with_a_clause_a_pronoun_or_a_negation() -> None:
    docstrings, _ = read()
    assert [one for one in docstrings if CLAUSE.match(one.text)] == []


def test_errors_that_docstrings_say_are_raised_exist() -> None:
    docstrings, words = read()
    known = words | set(dir(builtins)) | BY_OTHERS
    missing = [(one.place, raised_in(one.text) - known) for one in docstrings]
    assert [(place, names) for place, names in missing if names] == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Raises Failed.", {"Failed"}),
        ("Read it. Raises Failed, Expired and errors.Gone if so.", {"Failed", "Expired", "Gone"}),
        ("Do.\n\nRaises:\n    Refused: If so.\n    Gone: Else.", {"Refused", "Gone"}),
    ],
)
def test_raised_errors_are_read_from_a_sentence_and_from_a_section(
    text: str, names: set[str]
) -> None:
    assert raised_in(text) == names


def test_names_that_docstrings_quote_as_code_exist() -> None:
    docstrings, words = read()
    quoted = [(one.place, found[1]) for one in docstrings for found in QUOTED.finditer(one.text)]
    assert [(place, name) for place, name in quoted if not set(name.split(".")) <= words] == []
