"""The rows that `python -m tests.outside` prints: each module here that has a `FINDING`."""

import importlib
import pkgutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol, cast

__all__ = ["ROWS", "Row"]


class Row(Protocol):
    FINDING: str

    def reproduce(self, times: int) -> AsyncIterator[tuple[str, bool]]: ...


def _rows() -> list[Row]:
    names = sorted(each.name for each in pkgutil.iter_modules([str(Path(__file__).parent)]))
    others = {"__main__", "rows", "test_outside"}
    modules = [
        importlib.import_module(f"tests.outside.{name}") for name in names if name not in others
    ]
    return [cast("Row", module) for module in modules if hasattr(module, "FINDING")]


ROWS = _rows()
