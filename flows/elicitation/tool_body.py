"""A running tool body, and the names that it used with `once`.

Risks: `once` in a loop, where the second turn silently gets the first result and does nothing. A
body can therefore use each name once, and needs a different `key` for each repetition.
"""

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from flows.errors import InvalidQuestion


class ToolBody:
    """An execution of a tool's function, called by the client or by another tool.

    Each inner call is a body of its own, identified by its path: the call, and the number of equal
    calls before it.
    """

    def __init__(self, path: str = "") -> None:
        self.path = path
        self._inner = Counter[str]()
        self._used = set[tuple[str, str | int | None]]()

    def inner(self, what: str) -> "ToolBody":
        """Return the context for a nested tool call. `what` names the tool and its arguments."""
        self._inner[what] += 1
        return ToolBody(f"{self.path}/{what} {self._inner[what]}")

    @contextmanager
    def using(self, name: str, key: str | int | None) -> Generator[None]:
        """Reserve the name while `once` runs, and permanently after it succeeded.

        Raises InvalidQuestion if the body has already used that name with that key.
        """
        if (name, key) in self._used:
            how = "without a key" if key is None else f"with the key {key!r}"
            raise InvalidQuestion(
                f"once({name!r}) was already used {how} in this run of the tool, so the work "
                f"was not done. Give each call of once its own key, as in once({name!r}, work, "
                "key=item)."
            )
        self._used.add((name, key))
        try:
            yield
        except BaseException:
            self._used.discard((name, key))
            raise
