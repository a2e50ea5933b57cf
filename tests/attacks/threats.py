"""docs/threats.md, made from the attacks: python -m tests.attacks.threats > docs/threats.md."""

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from tests.attacks.attack import Attack, Open
from tests.attacks.bounds import BOUNDS

HOUSE = Path(__file__).parent.parent.parent
COMMAND = "python -m tests.attacks.threats > docs/threats.md"
# In the order of the document: what people and browsers meet, what providers send, the parts below.
SECTIONS = (
    "test_identity",
    "test_signed_in",
    "test_routes",
    "test_callbacks",
    "test_sharing",
    "test_bearers",
    "test_calls",
    "test_sessions",
    "test_gates",
    "test_seams",
    "test_machine",
    "test_oauth_answers",
    "test_payments",
    "test_webhooks",
    "test_signatures",
    "test_tokens",
    "test_sandbox",
    "test_not_stopped",
)
OPENING = f"""# Threats

Made from `tests/attacks/` by `{COMMAND}`. Change those, not this file.

Each table says who attacks, how, where it is stopped, and which tests would fail if it were not. The last one says what is *not* stopped.
"""  # noqa: E501 - a paragraph of Markdown is one line

COSTS = (
    "Each is read on the event loop, so this is how long one request may hold the others up. "
    "Measured once on a small machine by `python -m tests.attacks.bounds`; that it is read in a "
    "quarter of a second is a test."
)

Declared: TypeAlias = Attack | Open


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is declared, with the tests of its own module that tell it."""

    declared: Declared
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    title: str
    path: str
    rows: tuple[Row, ...]


def sections() -> tuple[Section, ...]:
    """Read every attack off the modules, in order; no test runs."""
    return tuple(_section(import_module(f"tests.attacks.{name}")) for name in SECTIONS)


def document() -> str:
    """The whole of docs/threats.md."""
    return "\n".join([OPENING, *map(_written, sections()), _costs()])


def _costs() -> str:
    """What one text of a stranger's costs, as it was measured once."""
    lines = ["## What a stranger's text costs at most", "", COSTS, ""]
    lines += ["| what is read | bytes at most | processor time |", "|---|---|---|"]
    lines += [f"| {b.what} | {b.bytes:,} | {b.measured} ms |" for b in BOUNDS]
    return "\n".join([*lines, ""])


def _section(module: ModuleType) -> Section:
    tests: dict[Declared, list[str]] = {
        value: [] for value in vars(module).values() if isinstance(value, Attack | Open)
    }
    for name, test in _tests_of(module):
        declared = vars(test).get("attack")
        if isinstance(declared, Attack | Open):
            tests.setdefault(declared, []).append(name)
    assert module.__doc__ is not None
    assert module.__file__ is not None
    return Section(
        title=module.__doc__.splitlines()[0].partition(":")[0].rstrip("."),
        path=Path(module.__file__).relative_to(HOUSE).as_posix(),
        rows=tuple(Row(declared=each, tests=tuple(names)) for each, names in tests.items()),
    )


def _tests_of(module: ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, found in vars(module).items():
        if name.startswith("test_") and inspect.isfunction(found):
            yield name, found


def _written(section: Section) -> str:
    is_open = isinstance(section.rows[0].declared, Open)
    columns = ("what", "why", "what to do") if is_open else ("who", "how", "where it is stopped")
    shown = "shown by" if is_open else "test"
    lines = [f"## {section.title}", "", f"Tests without a path are in {_linked(section.path)}.", ""]
    lines += [_line(*columns, shown), "|---|---|---|---|", *map(_written_row, section.rows), ""]
    return "\n".join(lines)


def _written_row(row: Row) -> str:
    tests = [f"`{name}`" for name in row.tests] + [_named(test) for test in row.declared.elsewhere]
    where = ", ".join(map(_linked, row.declared.where))
    shown = "<br>".join(tests) or "none"
    match row.declared:
        case Attack(who=who, how=how, stopped=stopped):
            return _line(who, how, f"{stopped} ({where})", shown)
        case Open(what=what, why=why, instead=instead):
            return _line(what, f"{why} ({where})", instead, shown)


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _linked(path: str) -> str:
    return f"[{path}](../{path})"


def _named(test: str) -> str:
    path, _, name = test.rpartition("::")
    return f"{_linked(path.partition('::')[0])} `{name}`"


if __name__ == "__main__":
    sys.stdout.write(document())
