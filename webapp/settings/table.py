"""The table of settings: each row has a name, a parser, a default and a sentence.

What could go wrong: a name that is set and that nobody reads, or one that is told otherwise than it
is read. So what is read, docs/settings.md, `elicit settings` and the names that are refused all
come from these rows.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, Generic, TypeVar

PREFIX = "ELICIT_"
_NAME = "{NAME}"  # a provider's, in capitals
_ANY_NAME = "([A-Z][A-Z0-9_]{0,31})"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(Generic[T]):
    """One row. `{NAME}` in its name stands for a provider's.

    `default` is what an operator would write, and parsed like that; `otherwise` says in words what
    holds where nothing is set. `parse` raises ValueError with a sentence for each problem.
    """

    name: str
    parse: Callable[[str], T]
    default: str = ""
    otherwise: str = ""
    says: str
    names_file: bool = False  # whose name may hold any bytes

    @property
    def shown_default(self) -> str:
        return f"`{self.default}`" if self.default else self.otherwise or "none"

    @property
    def is_of_providers(self) -> bool:
        return _NAME in self.name

    def of(self, provider: str) -> "Setting[T]":
        return dataclasses.replace(self, name=self.name.replace(_NAME, provider.upper()))

    def match(self, name: str) -> re.Match[str] | None:
        """Whether a variable is this row's; the provider's name is its first group."""
        return re.fullmatch(re.escape(self.name).replace(re.escape(_NAME), _ANY_NAME), name)


def setting(
    name: str,
    *,
    parse: Callable[[str], T],
    default: str = "",
    otherwise: str = "",
    says: str,
    names_file: bool = False,
) -> T:
    """A field of a dataclass that is read from the row; what the field is by itself, too."""
    row = Setting(
        name=name,
        parse=parse,
        default=default,
        otherwise=otherwise,
        says=says,
        names_file=names_file,
    )
    return dataclasses.field(default=parse(default), metadata={"row": row})


def rows_of(kind: type) -> Mapping[str, Setting[Any]]:
    """The rows of a dataclass, by its fields."""
    found = {each.name: each.metadata.get("row") for each in dataclasses.fields(kind)}
    return {name: row for name, row in found.items() if row is not None}


class Values:
    """An environment as the rows read it; `problems` has a sentence for whatever is wrong."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self.problems: list[str] = []

    def text(self, row: Setting[Any]) -> str:
        text = self.environment.get(row.name, "")
        return text if row.names_file else text.strip()

    def read(self, row: Setting[T]) -> T:
        """What is set, or else the default; that, too, where something is wrong."""
        try:
            return row.parse(self.text(row) or row.default)
        except ValueError as error:
            self.problems += [f"{row.name}: {sentence}" for sentence in error.args]
            return row.parse(row.default)

    def fields_of(self, kind: type) -> dict[str, Any]:
        """All fields of the dataclass that have a row."""
        return {name: self.read(row) for name, row in rows_of(kind).items()}

    def lack(self, missing: str, *, beside: str) -> None:
        """Note that of two settings that belong together only `beside` is set."""
        self.problems.append(f"{missing}: not set, and {beside} is: set both of them, or neither.")

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """A problem for each name of ours that is set and is no setting."""
        known = sorted(known)
        self.problems += [
            f"{name}: there is no such setting{_nearest(name, known)}."
            for name, value in sorted(self.environment.items())
            if name.startswith(PREFIX) and value.strip() and name not in known
        ]


# What is an option of `elicit serve`, by the name that a setting would have.
_OPTIONS: Final = {
    f"{PREFIX}{name.upper()}": f"--{name}" for name in ("port", "host", "workers", "reload")
}


def not_utf_8(environment: Mapping[str, str], table: Iterable[Setting[Any]]) -> list[str]:
    """A sentence for each of ours that holds other bytes; the names of files may hold any."""
    files = {row.name for row in table if row.names_file}
    return [
        f"{name}: it is not UTF-8."
        for name, value in sorted(environment.items())
        if name.startswith(PREFIX) and name not in files and _is_broken(value)
    ]


def _nearest(name: str, known: list[str]) -> str:
    near = get_close_matches(name, [*known, *_OPTIONS], n=1)
    if near and near[0] in _OPTIONS:
        return f"; elicit serve has the option {_OPTIONS[near[0]]} for it"
    return f"; perhaps {near[0]} is meant" if near else "; elicit settings lists them"


def _is_broken(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
