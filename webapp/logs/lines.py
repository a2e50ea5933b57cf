"""The log of a served process: one line per event, written by a thread of its own.

Risks: formatting a caller's text blocks the event loop for minutes, as coloured tracebacks do. A
disk that is full for ten seconds causes three thousand lines. So the event loop only queues a
record, and every text is cut. A problem that repeats within a minute is counted: the first line is
written at once, the rest as one line with `repeated=`. Ids that people search for are always
logged: each error number that a page showed and the id of each question are in the log within ten
seconds, many in one line.

The operator's pages show the latest lines that carry an id. A stored exception would hold the
values of its frames in memory, so only the line is stored: masked, cut, and without a token or an
answer, as `Events` writes it.
"""

import copy
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from webapp.logs.events import Events, JsonEvents, extras_of, mark_work, root_cause

WINDOW_SECONDS = 60.0
SOUGHT_SECONDS = 10.0  # how long an id waits for other ids that go into the same line
SOUGHT_CHARACTERS = 1500  # for the ids in one line; `Events` cuts lines at CHARACTERS_AT_MOST
TROUBLES_AT_MOST = 1000
WAITING_AT_MOST = 10_000
LEVELS = ("debug", "info", "warning", "error")
_CLOSING_SECONDS = 5.0
# Fields that people search for, and their names in a line with several values.
_SOUGHT = {"error_id": "error_ids", "id": "ids"}
# Fields that differ between two occurrences of the same problem.
_OCCURRENCES = frozenset({"id", "error_id", "leg", "event", "call", "hidden", "trace_id"})
# Exceptions of the web frameworks for a client that disconnects while it sends: not our errors.
_LEFT = frozenset({"ClientDisconnect", "ClientDisconnectException"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    level: int = logging.WARNING
    is_json: bool = False
    search_url: str | None = None  # where operators look up the id of a line

    @property
    def counts(self) -> bool:
        """True if repeated problems are counted. At the level DEBUG, each is written instead."""
        return self.level > logging.DEBUG


def take_over(settings: LogSettings) -> None:
    """Write our events and the libraries' to standard error. An author's own handlers stay.

    Handlers that the libraries set up by themselves are removed: their coloured tracebacks block
    the event loop.
    """
    lines = Lines(settings)
    for name in ("webapp", "flows"):
        own_logger = logging.getLogger(name)
        own_logger.handlers[:] = [lines]
        own_logger.setLevel(settings.level)
        own_logger.propagate = False
    fastmcp, root = logging.getLogger("fastmcp"), logging.getLogger()
    for logger in (fastmcp, root):
        for handler in tuple(logger.handlers):
            if _is_rich(handler):
                logger.removeHandler(handler)
    fastmcp.propagate = fastmcp.propagate or not fastmcp.handlers
    if not root.handlers:
        root.addHandler(lines)
        root.setLevel(settings.level)


class Lines(logging.Handler):
    """A handler that queues records for a thread, which counts, formats and writes them."""

    def __init__(
        self, settings: LogSettings, *, write: Callable[[logging.LogRecord], None] | None = None
    ) -> None:
        super().__init__(settings.level)
        self._stream = logging.StreamHandler()
        self._stream.setFormatter(
            (JsonEvents if settings.is_json else Events)(search_url=settings.search_url)
        )
        self._write = write or self._stream.handle
        self._counted = Counted() if settings.counts else None
        self._records: SimpleQueue[logging.LogRecord | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        if self._records.qsize() >= WAITING_AT_MOST:
            return  # a blocked disk or terminal must not fill the memory
        handed = copy.copy(record)
        mark_work(handed)
        error = root_cause(handed)
        if error is not None and type(error).__name__ in _LEFT:
            handed.msg, handed.args, handed.exc_info = "request.aborted", (), None
        self._records.put(handed)

    def close(self) -> None:
        """Write all queued records and stop the thread, at the end of the process."""
        if self._thread.is_alive():
            self._records.put(None)
            self._thread.join(_CLOSING_SECONDS)
        super().close()

    def _run(self) -> None:
        while True:
            try:
                record = self._records.get(timeout=1.0)
            except Empty:
                pass
            else:
                if record is None:
                    break
                if self._counted is None or self._counted.is_first(record, time.monotonic()):
                    self._write_each(record)
            if self._counted is not None:
                self._write_each(*self._counted.due(time.monotonic()))
        if self._counted is not None:
            self._write_each(*self._counted.due(float("inf")))

    def _write_each(self, *records: logging.LogRecord) -> None:
        for record in records:
            with suppress(Exception):  # a value that cannot be formatted must not end the log
                self._write(record)


class Counted:
    """The warnings of the last minute, and how often each has repeated."""

    def __init__(self) -> None:
        self._troubles: dict[object, _Trouble] = {}

    def is_first(self, record: logging.LogRecord, now: float) -> bool:
        """Return True if the record must be written now. Otherwise count it and return False."""
        if record.levelno < logging.WARNING:
            return True
        known = self._troubles.get(key := _key(record))
        if known is None:
            if len(self._troubles) < TROUBLES_AT_MOST:
                self._troubles[key] = _Trouble(now)
            return True
        known.count(record)
        return False

    def due(self, now: float) -> list[logging.LogRecord]:
        """Return the last record, with counts, of each problem that repeated and is due."""
        if not self._troubles:
            return []
        over = [(key, each) for key, each in self._troubles.items() if each.is_due(now)]
        for key, each in over:
            del self._troubles[key]
            if each.last is not None and now != float("inf"):
                self._troubles[key] = _Trouble(
                    now
                )  # the problem continues: the next line comes later
        return [line for _, each in over if (line := each.summary()) is not None]


class _Trouble:
    def __init__(self, since: float) -> None:
        self._since = since
        self.last: logging.LogRecord | None = None
        self._times = 0
        self._sought: dict[str, dict[str, None]] = {name: {} for name in _SOUGHT}
        self._id_characters = 0  # the total length of the ids that wait

    def count(self, record: logging.LogRecord) -> None:
        self._times += 1
        self.last = record
        for name, found in self._sought.items():
            value = str(vars(record).get(name, ""))
            if value and value not in found:
                found[value] = None
                self._id_characters += len(value) + 1

    def is_due(self, now: float) -> bool:
        """Return True if the problem's minute has passed, or if its ids are due to be written."""
        waits = SOUGHT_SECONDS if self._id_characters else WINDOW_SECONDS
        return now - self._since >= waits or self._id_characters >= SOUGHT_CHARACTERS

    def summary(self) -> logging.LogRecord | None:
        if self.last is None:
            return None
        facts = vars(self.last)
        facts["repeated"] = self._times
        for name, found in self._sought.items():
            if found.keys() - {str(facts.get(name))}:
                facts[_SOUGHT[name]] = ",".join(found)
        return self.last


def _key(record: logging.LogRecord) -> object:
    error, line = root_cause(record), None
    trace = error.__traceback__ if error is not None else None
    while trace is not None:
        line, trace = (trace.tb_frame.f_code.co_filename, trace.tb_lineno), trace.tb_next
    fields = tuple(
        (name, str(value)[:200])
        for name, value in extras_of(record).items()
        if name not in _OCCURRENCES
    )
    return (
        record.name,
        record.levelno,
        str(record.msg)[:200],
        type(error).__name__,
        line,
        fields,
    )


def _is_rich(handler: logging.Handler) -> bool:
    return any(each.__module__.startswith("rich.") for each in type(handler).__mro__)


# The latest log lines of this process that carry an id, for the operator's pages.

LINES_AT_MOST: Final = 2000
_IDS: Final = ("id", "error_id", "call", "event", "webhook_id")
_LOGGERS: Final = ("webapp", "flows")


class RecentLine(NamedTuple):
    """A log line, and the ids that it carries. `id` is the id of the record it is about."""

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
        ids = frozenset(str(facts[name]) for name in _IDS if facts.get(name))
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
