"""The parameters of a request, each of which may come once.

What could go wrong: two readers of a repeated parameter may take two different values, so
it is refused (RFC 6749, 3.1).
"""

from collections import Counter
from collections.abc import Iterator
from urllib.parse import parse_qsl

_FIELDS_AT_MOST = 40


class Repeated(ValueError):
    """A parameter that came more than once."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"The parameter {name} came more than once.")


class Parameters:
    """What a query or a form holds; an empty value is none."""

    def __init__(self, text: str | bytes) -> None:
        """Raise ValueError for what no form sends."""
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        self._pairs = parse_qsl(text, errors="strict", max_num_fields=_FIELDS_AT_MOST)

    def get(self, name: str) -> str | None:
        """Raise Repeated if there is more than one."""
        values = self.all(name)
        if len(values) > 1:
            raise Repeated(name)
        return values[0] if values else None

    def all(self, name: str) -> list[str]:
        return [value for key, value in self._pairs if key == name]

    def check_unrepeated(self) -> None:
        """Raise Repeated."""
        for name in self._repeated():
            raise Repeated(name)

    def _repeated(self) -> Iterator[str]:
        counts = Counter(key for key, _ in self._pairs)
        return (name for name, count in counts.items() if count > 1)
