"""The packages of the code: each folder directly below flows and webapp."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).parent.parent.parent
HALVES: Final = ("flows", "webapp")


def sources_of(top: Path = PROJECT) -> dict[str, list[str]]:
    """Return the lines of every module that can have a fault."""
    return {
        path.relative_to(top).as_posix(): path.read_text("utf-8").split("\n")
        for half in HALVES
        for path in sorted((top / half).rglob("*.py"))
    }


def package_of(module: str) -> str:
    """Return the package of a module: `webapp/mcp/...` is in `webapp/mcp`."""
    return "/".join(module.split("/")[:-1][:2])


def shares(sources: Mapping[str, Sequence[str]], count: int) -> dict[str, int]:
    """Divide `count` between the packages in proportion to their lines, one or more for each."""
    lines: dict[str, int] = {}
    for module, of_it in sources.items():
        package = package_of(module)
        lines[package] = lines.get(package, 0) + sum(1 for line in of_it if line.strip())
    exact = {package: count * own / sum(lines.values()) for package, own in lines.items()}
    given = dict.fromkeys(lines, 1)
    for _ in range(count - len(given)):
        given[max(given, key=lambda package: exact[package] - given[package])] += 1
    return given
