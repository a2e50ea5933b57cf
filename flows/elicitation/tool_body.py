"""The body of a tool while it runs, and what it has done once.

What could go wrong: `once` in a loop, whose second turn gets the first one's result and silently
does nothing. So a body uses a name once; what it does again needs a key of its own.
"""

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from flows.errors import InvalidQuestion


class ToolBody:
    """One start of a tool's function, called by the client or by another tool.

    Each inner call is a body of its own, known by its place: what it was, and the how-manieth such.
    """

    def __init__(self, path: str = "") -> None:
        self.path = path
        self._inner = Counter[str]()
        self._used = set[tuple[str, str | int | None]]()

    def inner(self, what: str) -> "ToolBody":
        """That of a call which this one makes; `what` says of which tool and with what."""
        self._inner[what] += 1
        return ToolBody(f"{self.path}/{what} {self._inner[what]}")

    @contextmanager
    def using(self, name: str, key: str | int | None) -> Generator[None]:
        """While `once` is at it, and for good where that came to an end.

        Raises InvalidQuestion where the body has used that name, with that key.
        """
        if (name, key) in self._used:
            how = "without a key" if key is None else f"with the key {key!r}"
            raise InvalidQuestion(
                f"once({name!r}) was used before {how} in this run of the tool, so the work was "
                f"not done: give each its own, as in once({name!r}, work, key=item)."
            )
        self._used.add((name, key))
        try:
            yield
        except BaseException:
            self._used.discard((name, key))
            raise
