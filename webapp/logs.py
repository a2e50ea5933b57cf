"""Logs: our events on standard error, one line each, with the ids that belong to them.

What could go wrong: a number that a page asks people to report, and that no log holds; a secret
that an author's exception carries. What a record was given besides its event is written as
key=value; the events themselves never carry a token, a code, a cookie or a body. What a tool was
given in confidence in this very call is taken out of what is logged of its exceptions.
"""

import logging
import traceback

from flows.errors import NoAsker
from flows.question import current_asker
from webapp.masking import mask

# Of the libraries, which log what a tool raised.
TOOL_LOGGERS = ("mcp.server.mcpserver.server", "fastmcp.server.server")
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


def mask_secrets(record: logging.LogRecord) -> bool:
    """A filter that drops nothing but what the running call was given in confidence."""
    try:
        hidden = {str(word) for word in getattr(current_asker(), "hidden", ())}
    except NoAsker:
        return True
    error = record.exc_info[1] if record.exc_info else None
    said = record.getMessage()
    if error is not None:
        # As text of the message: some handlers make a traceback of their own from the exception.
        said += "\n" + "".join(traceback.format_exception(error)).rstrip()
    masked = mask(said, hidden)
    if masked != said:
        record.msg, record.args, record.exc_info = masked, (), None
    return True


def mask_tool_logs() -> None:
    """Have the served libraries' own records of what tools raised pass through `mask_secrets`."""
    for name in TOOL_LOGGERS:
        logging.getLogger(name).addFilter(mask_secrets)


def show_events(level: int = logging.WARNING) -> None:
    """Write our own events to standard error; what an author configured stays as it is."""
    handler = logging.StreamHandler()
    handler.setFormatter(Events())
    handler.addFilter(mask_secrets)
    for name in _OURS:
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(handler)
            logger.setLevel(level)
            logger.propagate = False
