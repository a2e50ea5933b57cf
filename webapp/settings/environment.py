"""Variables of the environment, as all the settings read them."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches

PREFIX = "ELICIT_"
_FILES = {"ELICIT_CONFIG", "ELICIT_STORE", "ELICIT_TEMPLATES"}


class Variables(Mapping[str, str]):
    """An environment that knows which of its names were asked for, whether they are set or not.

    What is set and nobody asked for is a mistake in its name. So whoever reads a setting reads it
    in any case, also where it would change nothing.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._asked = set[str]()

    def __getitem__(self, name: str) -> str:
        self._asked.add(name)
        return self._environment[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._environment)

    def __len__(self) -> int:
        return len(self._environment)

    def unknown(self, *, more: Iterable[str] = ()) -> list[str]:
        """A sentence for each of ours that is set and is no setting; `more` are right ones too."""
        known = sorted({name for name in self._asked if name.startswith(PREFIX)} | {*more})
        return [
            f"{name}: there is no such setting{_nearest(name, known)}."
            for name, value in sorted(self._environment.items())
            if name.startswith(PREFIX) and value.strip() and name not in known
        ]


def _nearest(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"; perhaps {near[0]} is meant" if near else "; README.md names them"


def not_utf_8(environment: Mapping[str, str]) -> list[str]:
    """A sentence for each of ours that holds other bytes; the names of files may hold any."""
    return [
        f"{name}: it is not UTF-8."
        for name, value in sorted(environment.items())
        if name.startswith(PREFIX) and name not in _FILES and _is_broken(value)
    ]


def _is_broken(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def words(environment: Mapping[str, str], name: str) -> list[str]:
    """What stands there, between commas or spaces."""
    return environment.get(name, "").replace(",", " ").split()


def switch(
    environment: Mapping[str, str], name: str, problems: list[str], *, default: bool
) -> bool:
    """1 or 0; anything else is a problem."""
    text = environment.get(name, "").strip()
    if text not in ("", "0", "1"):
        problems.append(f"{name}: it is 1 or 0.")
        return default
    return default if not text else text == "1"
