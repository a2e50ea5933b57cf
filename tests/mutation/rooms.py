"""The packages of the code, called rooms here: each folder directly below flows and webapp."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

HOUSE: Final = Path(__file__).parent.parent.parent
PACKAGES: Final = ("flows", "webapp")


def sources_of(top: Path = HOUSE) -> dict[str, list[str]]:
    """Return the lines of every module in which a fault can be."""
    return {
        path.relative_to(top).as_posix(): path.read_text("utf-8").split("\n")
        for package in PACKAGES
        for path in sorted((top / package).rglob("*.py"))
    }


def room_of(module: str) -> str:
    """Return the room of a module: `webapp/mcp/...` is in `webapp/mcp`."""
    return "/".join(module.split("/")[:-1][:2])


def shares(sources: Mapping[str, Sequence[str]], count: int) -> dict[str, int]:
    """Divide `count` between the rooms in proportion to their lines. Each room gets one or more."""
    lines: dict[str, int] = {}
    for module, of_it in sources.items():
        room = room_of(module)
        lines[room] = lines.get(room, 0) + sum(1 for line in of_it if line.strip())
    exact = {room: count * own / sum(lines.values()) for room, own in lines.items()}
    given = dict.fromkeys(lines, 1)
    for _ in range(count - len(given)):
        given[max(given, key=lambda room: exact[room] - given[room])] += 1
    return given
