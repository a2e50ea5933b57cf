"""Log records: our events on standard error, one line each, with the ids that belong to them.

A record's extra fields are written as key=value. The events never contain a token, a code, a cookie
or a body. Secrets that people gave to the tool in this call are masked in its exceptions.

Risks: a page shows an error number that is in no log. `show_events` therefore writes events even if
the author configured no logging. An author's exception contains a secret. `mask_secrets` masks it.
"""

import json
import logging
import re
import traceback
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast
from urllib.parse import quote

from flows.errors import NoAsker
from flows.question import current_asker
from webapp.logs.masking import masked_in_short
from webapp.telemetry.work import current_work

if TYPE_CHECKING:
    from collections.abc import Collection

# Loggers of the libraries that log the exceptions of tools.
TOOL_LOGGERS = ("mcp.server.mcpserver.server", "fastmcp.server.server")
# gunicorn's worker uses uvicorn's logger.
ACCESS_LOGGERS = ("uvicorn.access", "hypercorn.access", "granian.access")
CHARACTERS_AT_MOST = 2000  # characters of one text in the log
TRACE_CHARACTERS_AT_MOST = 8000
MASKED_CHARACTERS_AT_MOST = 64 * 1024  # characters of a third-party record that contains a secret
PLACES_AT_MOST = 6
_ID_AT_MOST = 200
CAUSES_AT_MOST = 10
# Our tokens, and the query string of an address to which a provider sends the browser back.
_IN_ADDRESS = re.compile(
    r"(/(?:e|pair|callback/url|operator/enter)/)[^/?#\s\"]+"
    r"|(/(?:return|callback|signin/callback)(?:/[\w.-]+)?/?)\?[^\s\"]+"
    r"|()[\w-]{40,}\.[\w-]{43}(?![\w-])"
)
_OUR_PACKAGES = ("webapp", "flows")
# Former names of events. Until the next release, a line also contains the former name (`formerly`).
FORMER_EVENTS = {
    "account.token_read": "account.token_told",
    "audit.repaired": "audit.mended",
    "call.abandoned_run_failed": "call.left_body_failed",
    "call.not_ended": "call.would_not_end",
    "call.not_recorded": "call.not_noted",
    "call.recorded": "call.noted",
    "callback.mix_up": "callback.mixed",
    "client.not_stored": "client.not_remembered",
    "elicitation.changed": "elicitation.moved",
    "event.not_accepted": "event.not_taken",
    "events.not_stored": "events.not_kept",
    "payment.unknown_status": "payment.unknown_word",
    "questions.not_awaited": "questions.never_asked",
    "return.provider_unreachable": "return.unanswered",
    "rules.timed_out": "rules.nobody_answered",
    "store.changes_disconnected": "store.hears_nothing",
    "store.changes_reconnected": "store.hears_again",
    "sweeper.conflict": "sweeper.outrun",
    "task.result_not_stored": "task.result_not_kept",
    "tools.check_failed": "tools.look_failed",
    "webhook.not_stored": "webhook.not_kept",
    "webhook.processed": "webhook.taken",
    "webhook.provider_unreachable": "webhook.not_asked",
    "workers.not_connected": "workers.apart",
}
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Events(logging.Formatter):
    """A formatter that writes one line per event, with the exception and its innermost frames.

    Example: `2026-03-01T12:00:00.000Z WARNING webapp.routes.links provider.failed error_id=ab12`.
    """

    def __init__(self, *, search_url: str | None = None) -> None:
        """Create the formatter. With `search_url`, a line with an id has a link for operators."""
        super().__init__()
        self._search_url = search_url

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - the library's names
        moment = datetime.fromtimestamp(record.created, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def format(self, record: logging.LogRecord) -> str:
        facts = self._facts(record)
        opening = [str(facts.pop(name)) for name in ("time", "level", "logger", "event")]
        return " ".join([*map(_shown, opening), *(f"{k}={_shown(v)}" for k, v in facts.items())])

    def _facts(self, record: logging.LogRecord) -> dict[str, object]:
        facts: dict[str, object] = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "event": record.getMessage(),
            **extras_of(record),
        }
        if (former := FORMER_EVENTS.get(record.getMessage())) is not None:
            facts["formerly"] = former
        hidden = cast("Collection[str]", facts.pop("hidden", ()))
        error = record.exc_info[1] if record.exc_info else None
        cause = root_cause(record)
        if error is not None and cause is not None:
            facts["error"] = _named(error)
            if cause is not error:
                facts["cause"] = _named(cause)
            facts["at"] = _places(cause)
        if self._search_url is not None and (sought := facts.get("id") or facts.get("error_id")):
            facts["see"] = f"{self._search_url}?q={quote(str(sought)[:_ID_AT_MOST], safe='')}"
        return {
            name: value
            if isinstance(value, int | float)
            else masked_in_short(str(value), hidden, at_most=CHARACTERS_AT_MOST)
            for name, value in facts.items()
        }


class JsonEvents(Events):
    """A formatter that writes an event as a JSON object, with the traceback in one field."""

    def format(self, record: logging.LogRecord) -> str:
        facts = self._facts(record)
        if record.exc_info and record.exc_info[1] is not None:
            hidden = cast("Collection[str]", vars(record).get("hidden", ()))
            trace = traceback.format_exception(record.exc_info[1], limit=-20)
            whole = "".join(
                masked_in_short(part, hidden, at_most=CHARACTERS_AT_MOST) for part in trace
            )
            facts["trace"] = whole[-TRACE_CHARACTERS_AT_MOST:]
        return json.dumps(facts)


def extras_of(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields of a record that are not standard attributes."""
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def mark_work(record: logging.LogRecord) -> None:
    """Add the ids of the current call and question to a record, and the secrets to mask in it."""
    work = current_work()
    if work is not None:
        facts = vars(record)
        for name, value in (("id", work.id), ("call", work.call), ("trace_id", work.trace_id)):
            if value is not None:
                facts.setdefault(name, value)
    with suppress(NoAsker):
        call = current_asker()
        request_id = getattr(call, "request_id", None)
        if request_id is not None:
            vars(record).setdefault("call", request_id)
        hidden = frozenset(str(word) for word in getattr(call, "hidden", ()))
        if hidden:
            vars(record)["hidden"] = hidden


def root_cause(record: logging.LogRecord) -> BaseException | None:
    """Return the original exception of a record: follow causes and each group's first error."""
    error = record.exc_info[1] if record.exc_info else None
    for _ in range(CAUSES_AT_MOST):
        if isinstance(error, BaseExceptionGroup):
            error = cast("BaseException", error.exceptions[0])
        elif error is not None and error.__cause__ is not None:
            error = error.__cause__
        else:
            break
    return error


def _named(error: BaseException) -> str:
    notes = "; ".join(map(str, getattr(error, "__notes__", ())))
    return f"{type(error).__name__}: {error}{f' ({notes})' if notes else ''}"


def _places(error: BaseException) -> str:
    frames = [
        f"{frame.f_code.co_filename}:{line} {frame.f_code.co_name}"
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    return " < ".join(reversed(frames[-PLACES_AT_MOST:]))


def _shown(value: object) -> str:
    """Return the text on one line, with control characters escaped."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def mask_secrets(record: logging.LogRecord) -> bool:
    """Mask the running call's secrets in a record. Return True: this filter drops no record."""
    try:
        hidden = {str(word) for word in getattr(current_asker(), "hidden", ())}
    except NoAsker:
        return True
    if not hidden:
        return True
    error = record.exc_info[1] if record.exc_info else None
    message = record.getMessage()
    if error is not None:
        # Put the traceback in the message: handlers would format the exception with its secrets.
        message += "\n" + "".join(traceback.format_exception(error)).rstrip()
    masked = masked_in_short(message, hidden, at_most=MASKED_CHARACTERS_AT_MOST)
    if masked != message:
        record.msg, record.args, record.exc_info = masked, (), None
    return True


def mask_tool_logs() -> None:
    """Mask secrets in the log records of the MCP libraries about exceptions of tools."""
    for name in TOOL_LOGGERS:
        logging.getLogger(name).addFilter(mask_secrets)


def mask_access_logs() -> None:
    """Mask our tokens in the access logs of third-party servers."""
    for name in ACCESS_LOGGERS:
        logging.getLogger(name).addFilter(mask_addresses)


def mask_addresses(record: logging.LogRecord) -> bool:
    """Mask tokens, codes and states in a record's addresses.

    Return True: this filter drops no record.
    """
    if isinstance(record.args, tuple):
        record.args = tuple(
            _IN_ADDRESS.sub(_without_token, each) if isinstance(each, str) else each
            for each in record.args
        )
    else:  # a mapping, which may compute its values while the message is formatted
        record.msg, record.args = _IN_ADDRESS.sub(_without_token, record.getMessage()), ()
    return True


def _without_token(found: re.Match[str]) -> str:
    return f"{found[1] or found[2] or ''}***"


def show_events() -> None:
    """Write our events to standard error, unless the author has configured handlers for them."""
    handler = logging.StreamHandler()
    handler.setFormatter(Events())
    handler.addFilter(mask_secrets)
    for name in _OUR_PACKAGES:
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(handler)
            logger.setLevel(logging.WARNING)
            logger.propagate = False
