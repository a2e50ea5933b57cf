"""The latest log lines of this process that carry an id, for the operator's pages.

Risks: a stored exception holds the values of its frames in memory, so only the line is stored.
`Events` formats the line like every other one: masked, cut, and without a token or an answer.
"""

import copy
import logging
from collections import deque
from collections.abc import Collection, Generator
from contextlib import contextmanager
from typing import Final, NamedTuple

from webapp.logs.events import Events, mark_work

LINES_AT_MOST: Final = 2000
_SOUGHT: Final = ("id", "error_id", "call", "event", "webhook_id")
_LOGGERS: Final = ("webapp", "flows")


class RecentLine(NamedTuple):
    """A log line, and the ids that it carries. `id` is that of the record it is about."""

    ids: frozenset[str]
    id: str | None
    text: str


class RecentLines(logging.Handler):
    """A handler that remembers the latest lines in this process's memory."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(Events())
        self._lines = deque[RecentLine](maxlen=LINES_AT_MOST)

    def emit(self, record: logging.LogRecord) -> None:
        marked = copy.copy(record)
        mark_work(marked)
        facts = vars(marked)
        ids = frozenset(str(facts[name]) for name in _SOUGHT if facts.get(name))
        if ids:
            about = facts.get("id")
            text = self.format(marked)
            self._lines.append(RecentLine(ids, None if about is None else str(about), text))

    def about(self, ids: Collection[str]) -> list[RecentLine]:
        """Return the lines that carry one of these ids, oldest first."""
        return [line for line in self._lines if not line.ids.isdisjoint(ids)]

    @contextmanager
    def listening(self) -> Generator[None]:
        """Remember the lines that are logged during this block."""
        loggers = [logging.getLogger(name) for name in _LOGGERS]
        for logger in loggers:
            logger.addHandler(self)
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeHandler(self)
