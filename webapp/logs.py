"""Logs: our events on standard error, one line each, with the ids that belong to them.

What could go wrong: a number that a page asks people to report, and that no log holds; a secret
that an author's exception carries. What a record was given besides its event is written as
key=value; the events themselves never carry a token, a code, a cookie or a body.
"""

import logging

_OURS = ("webapp", "flows")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Events(logging.Formatter):
    """`12:00:00 webapp.routes.links provider.failed error_id=ab12`, then a traceback if any."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        line = super().formatMessage(record)
        more = {key: value for key, value in vars(record).items() if key not in _STANDARD}
        return " ".join([line, *(f"{key}={value!s}" for key, value in more.items())])


def show_events(level: int = logging.WARNING) -> None:
    """Write our own events to standard error; what an author configured stays as it is."""
    handler = logging.StreamHandler()
    handler.setFormatter(Events())
    for name in _OURS:
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(handler)
            logger.setLevel(level)
            logger.propagate = False
