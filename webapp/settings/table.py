"""The table of settings: each row has a name, a parser, a default and a description.

Risks: the server silently ignores a variable, or a description differs from the behavior. The same
rows are therefore used to read the settings, to refuse unknown names, and to write
docs/reference/settings.md and the output of `elicit settings`.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, Generic, TypeVar

PREFIX = "ELICIT_"
_NAME = "{NAME}"  # a provider's name, in capitals
_ANY_NAME = "([A-Z][A-Z0-9_]{0,31})"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(Generic[T]):
    """A row of the table. `{NAME}` in its name stands for a provider's name.

    `default` is a text as an operator would write it, and is parsed in the same way. `otherwise`
    describes the behavior without a value. `parse` raises ValueError with a sentence for each
    problem.
    """

    name: str
    parse: Callable[[str], T]
    default: str = ""
    otherwise: str = ""
    says: str
    names_file: bool = False  # the value is a file name, which may contain any bytes

    @property
    def shown_default(self) -> str:
        return f"`{self.default}`" if self.default else self.otherwise or "none"

    @property
    def is_of_providers(self) -> bool:
        return _NAME in self.name

    def of(self, provider: str) -> "Setting[T]":
        return dataclasses.replace(self, name=self.name.replace(_NAME, provider.upper()))

    def match(self, name: str) -> re.Match[str] | None:
        """Return a match if the variable belongs to this row. Group 1 is the provider's name."""
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
    """Return a dataclass field that belongs to a row of the table and has the row's default."""
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
    """Return the rows of a dataclass by its fields."""
    found = {each.name: each.metadata.get("row") for each in dataclasses.fields(kind)}
    return {name: row for name, row in found.items() if row is not None}


class Values:
    """An environment as read through the rows. `problems` has a sentence for each fault."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self.problems: list[str] = []

    def text(self, row: Setting[Any]) -> str:
        text = self.environment.get(row.name, "")
        return text if row.names_file else text.strip()

    def read(self, row: Setting[T]) -> T:
        """Return the parsed value, or the default if the variable is unset or invalid.

        If the variable is invalid, also add its problems to `problems`.
        """
        try:
            return row.parse(self.text(row) or row.default)
        except ValueError as error:
            self.problems += [f"{row.name}: {sentence}" for sentence in error.args]
            return row.parse(row.default)

    def fields_of(self, kind: type) -> dict[str, Any]:
        """Return the values of all fields of the dataclass that have a row."""
        return {name: self.read(row) for name, row in rows_of(kind).items()}

    def lack(self, missing: str, *, present: str) -> None:
        """Add a problem: `missing` is not set, although `present`, which needs it, is set."""
        self.problems.append(f"{missing}: not set, and {present} is: set both of them, or neither.")

    def refuse_unknown(self, known: Iterable[str], *, former: Mapping[str, str]) -> None:
        """Add a problem for each set variable that begins with ELICIT_ but is not a setting.

        `former` maps the prefix of removed settings to a sentence that explains the removal.
        """
        known = sorted(known)
        for name, value in sorted(self.environment.items()):
            if name.startswith(PREFIX) and value.strip() and name not in known:
                gone = next((former[start] for start in former if name.startswith(start)), None)
                why = gone or f"no setting has this name{_nearest(name, known)}"
                self.problems.append(f"{name}: {why}.")


# Options of `elicit serve`, by the names that settings would have.
_OPTIONS: Final = {
    f"{PREFIX}{name.upper()}": f"--{name}" for name in ("port", "host", "workers", "reload")
}


def not_utf_8(environment: Mapping[str, str], table: Iterable[Setting[Any]]) -> list[str]:
    """Return a sentence for each of our variables that is not UTF-8, except file names."""
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
