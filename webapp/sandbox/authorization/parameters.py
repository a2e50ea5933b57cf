"""The parameters of a request, each of which may come once.

Risks: two readers of a repeated parameter can read two different values. So a repeated parameter is
refused (RFC 6749, 3.1).
"""

from collections import Counter
from collections.abc import Iterator
from urllib.parse import parse_qsl

_FIELDS_AT_MOST = 40


class Repeated(ValueError):
    """A parameter came more than once."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"The parameter {name} came more than once.")


class Parameters:
    """The parameters of a query or a form. An empty value counts as missing."""

    def __init__(self, text: str | bytes) -> None:
        """Parse the text.

        Raises:
            ValueError: The text is not a form, or has too many fields.
        """
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        self._pairs = parse_qsl(text, errors="strict", max_num_fields=_FIELDS_AT_MOST)

    def get(self, name: str) -> str | None:
        """Return the value of a parameter, or None.

        Raises:
            Repeated: The parameter came more than once.
        """
        values = self.all(name)
        if len(values) > 1:
            raise Repeated(name)
        return values[0] if values else None

    def all(self, name: str) -> list[str]:
        return [value for key, value in self._pairs if key == name]

    def check_unrepeated(self) -> None:
        """Check that no parameter came more than once.

        Raises:
            Repeated: A parameter came more than once.
        """
        for name in self._repeated():
            raise Repeated(name)

    def _repeated(self) -> Iterator[str]:
        counts = Counter(key for key, _ in self._pairs)
        return (name for name, count in counts.items() if count > 1)
