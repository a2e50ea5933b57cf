"""An attack, as a row of docs/threats.md: who tries what, where it is stopped, which tests tell it.

Each is declared beside its tests and put on them as a decorator. Nothing is registered: a test
carries its attack, and `tests.attacks.threats` reads them off the modules. `elsewhere` has tests of
other folders, as path::name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

TestT = TypeVar("TestT", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """A row of what is stopped."""

    who: str
    how: str
    stopped: str
    where: tuple[str, ...]
    elsewhere: tuple[str, ...] = ()

    def __call__(self, test: TestT) -> TestT:
        vars(test)["attack"] = self
        return test


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """A row of what is not stopped; its tests fail on the day when it is."""

    what: str
    why: str
    instead: str
    where: tuple[str, ...]
    elsewhere: tuple[str, ...] = ()

    def __call__(self, test: TestT) -> TestT:
        vars(test)["attack"] = self
        return test
