"""A fault: changed lines of our code, found again by their text."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

PLANTED: Final = "Planted"  # the operator of a fault that a person wrote, not a tool
FAULTS: Final = Path(__file__).with_name("faults.json")
OUTCOMES: Final = Path(__file__).with_name("outcomes.json")
DEAD: Final = ("killed", "timed out")
_SAME_MODULE: Final = 0.5  # a match in its own module counts as half a neighbour


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """The current location of a fault: lines from `start` on, in this module."""

    module: str
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault: `original` lines that become `faulty`, and neighbours that identify them.

    All lines are stored without the indentation of the first of `original`. `finding` is the id of
    the finding whose correction the fault undoes.
    """

    id: str
    module: str
    operator: str
    before: tuple[str, ...]
    original: tuple[str, ...]
    faulty: tuple[str, ...]
    after: tuple[str, ...]
    finding: str | None = None

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> Self:
        lines: dict[str, Any] = {
            name: tuple(written[name]) for name in ("before", "original", "faulty", "after")
        }
        return cls(**{**written, **lines})

    def written(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    def place(self, sources: Mapping[str, Sequence[str]]) -> Location | None:
        """Return the current location, or None if the lines are gone or ambiguous.

        `sources` are the lines of each module. A single match in the fault's own module needs no
        matching neighbour. Any other match needs one, and must be better than the next match.
        """
        found: list[tuple[float, Location]] = []
        wanted = [line.strip() for line in self.original]
        for module, lines in sources.items():
            stripped = _stripped(tuple(lines))
            if wanted[0] not in stripped:  # faster than the loop
                continue
            for start, line in enumerate(stripped):
                if line == wanted[0] and stripped[start : start + len(wanted)] == wanted:
                    near = self._neighbours(stripped, start)
                    at_home = _SAME_MODULE if module == self.module else 0
                    found.append((near + at_home, Location(module=module, start=start)))
        found.sort(key=lambda one: one[0], reverse=True)
        if not found or (len(found) > 1 and found[0][0] in (0, _SAME_MODULE, found[1][0])):
            return None
        return found[0][1] if found[0][0] else None

    def applied(self, lines: Sequence[str], place: Location) -> list[str]:
        first = lines[place.start]
        indentation = first[: len(first) - len(first.lstrip())]
        faulty = [indentation + line if line else line for line in self.faulty]
        return [*lines[: place.start], *faulty, *lines[place.start + len(self.original) :]]

    def _neighbours(self, stripped: list[str], start: int) -> int:
        """Count the unchanged neighbours, above and below, up to the first changed one."""
        end = start + len(self.original)
        above = reversed(stripped[max(0, start - len(self.before)) : start])
        return _alike(reversed(self.before), above) + _alike(self.after, stripped[end:])


@cache
def _stripped(lines: tuple[str, ...]) -> list[str]:
    """Return the lines without indentation. Each module is searched for hundreds of faults."""
    return [line.strip() for line in lines]


def _alike(these: Iterable[str], those: Iterable[str]) -> int:
    count = 0
    for one, other in zip(these, those, strict=False):
        if one.strip() != other:
            return count
        count += 1
    return count


def faults_of() -> list[Fault]:
    """Return the frozen faults."""
    return [Fault.read(one) for one in json.loads(FAULTS.read_text())["faults"]]
