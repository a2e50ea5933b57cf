"""Log lines contain the event and its ids, and no confidential data."""

import json
import logging
import re
from collections.abc import Callable
from typing import cast

import pytest

from flows.errors import Declined
from flows.question import Asker, asking
from tests.support.cli import log_as_before
from tests.support.work import is_at_most
from webapp.command import quieten
from webapp.logs.events import (
    CHARACTERS_AT_MOST,
    FORMER_EVENTS,
    TOOL_LOGGERS,
    Events,
    JsonEvents,
    mask_secrets,
    show_events,
)
from webapp.logs.lines import (
    LINES_AT_MOST,
    SOUGHT_SECONDS,
    WINDOW_SECONDS,
    Counted,
    Lines,
    LogSettings,
    RecentLines,
)


def line(message: str, **extra: object) -> str:
    record = logging.LogRecord("webapp.routes", logging.WARNING, "", 0, message, (), None)
    vars(record).update(extra)
    return Events().format(record)


def test_event_is_logged_with_its_ids() -> None:
    logged = line("provider.failed", error_id="ab12", id="e1")
    assert logged.endswith("WARNING webapp.routes provider.failed error_id=ab12 id=e1")


def test_event_without_ids_is_single_line() -> None:
    assert line("app.failed").endswith("webapp.routes app.failed")
    assert "\n" not in line("app.failed")


def test_renamed_event_has_its_former_name() -> None:
    record = logging.LogRecord("webapp", logging.INFO, "", 1, "audit.repaired", None, None)
    assert json.loads(JsonEvents().format(record))["formerly"] == "audit.mended"
    assert not FORMER_EVENTS.keys() & set(FORMER_EVENTS.values())


async def test_traceback_does_not_contain_secret_of_call() -> None:
    class Call:
        hidden = frozenset({"an-open-sesame", "abc"})

    def fail() -> None:
        raise ValueError("no such key: an-open-sesame, abc")

    record = logging.LogRecord("mcp", logging.ERROR, "", 0, "Error in %s", ("tool",), None)
    try:
        fail()
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    with asking(cast("Asker", Call())):
        assert mask_secrets(record)
    logged = logging.Formatter().format(record)
    assert "an-open-sesame" not in logged
    assert "no such key: ***, abc" in logged
    assert "in fail" in logged


def test_record_outside_of_call_is_unchanged() -> None:
    record = logging.LogRecord("mcp", logging.ERROR, "", 0, "Error in %s", ("tool",), None)
    assert mask_secrets(record)
    assert (record.msg, record.args) == ("Error in %s", ("tool",))


def failed(error: Exception, message: str = "Tool %r failed", **extra: object) -> logging.LogRecord:
    """Return a library's log record of an exception that was really raised."""
    record = logging.LogRecord("mcp.server", logging.ERROR, "", 0, message, ("buy",), None)
    if "%" not in message:
        record.args = ()
    vars(record).update(extra)
    wrapped = RuntimeError("wrapped")
    wrapped.__cause__ = raised(error)
    record.exc_info = (RuntimeError, wrapped, None)
    return record


def raised(error: Exception) -> Exception:
    try:
        raise error
    except type(error) as caught:
        return caught


def test_error_is_logged_as_dated_line_with_cause_and_location() -> None:
    # finding: R9
    logged = Events().format(failed(ValueError("two\nlines \x1b[2J")))
    assert re.match(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ERROR mcp.server Tool 'buy' failed ", logged
    )
    assert "error=RuntimeError: wrapped cause=ValueError: two\\nlines \\x1b[2J at=" in logged
    assert "test_logs.py" in logged
    assert "\n" not in logged


def test_long_text_of_caller_is_truncated() -> None:
    # finding: R9
    # finding: S30
    logged = Events().format(failed(ValueError("x" * 40_000)))
    assert len(logged) < 2 * CHARACTERS_AT_MOST
    assert "more characters]" in logged


@pytest.mark.parametrize("style", [Events, JsonEvents])
def test_record_is_formatted_in_linear_time(style: type[Events | JsonEvents]) -> None:
    # finding: S30
    # finding: XH10
    def written(size: int) -> Callable[[], object]:
        record = failed(RuntimeError("(" * size + "é\n" * size))
        return lambda: style().format(record)

    # The text is sixteen times as long: quadratic work would take 256 times as long.
    assert is_at_most(written(640_000), times=80, baseline=written(40_000))


def test_json_log_line_contains_traceback() -> None:
    logged = JsonEvents().format(failed(ValueError("no"), error_id="ab12", hidden=frozenset()))
    facts = json.loads(logged)
    assert facts["event"] == "Tool 'buy' failed"
    assert (facts["level"], facts["error_id"], facts["cause"]) == (
        "ERROR",
        "ab12",
        "ValueError: no",
    )
    assert "in raised" in facts["trace"]
    assert "\n" not in logged


def test_repeated_error_is_counted_and_logged_once_per_minute() -> None:
    # finding: R9
    counted, seconds = Counted(), 0.0
    for number in range(3092):
        first = counted.is_first(failed(OSError("full"), "route.failed"), seconds)
        assert first == (number == 0)
        seconds += 12 / 3092
    assert counted.due(seconds) == []
    (reported,) = counted.due(WINDOW_SECONDS)
    assert "repeated=3091" in Events().format(reported)
    assert counted.due(WINDOW_SECONDS) == []


@pytest.mark.parametrize("name", ["error_id", "id"])
@pytest.mark.parametrize("pages", [2, 30, 3092])
def test_every_shown_error_id_is_in_log(pages: int, name: str) -> None:
    # finding: XV4
    counted, seconds, lines = Counted(), 0.0, list[str]()
    shown = [
        f"{number:012x}" if name == "error_id" else f"{number:044x}" for number in range(pages)
    ]
    for number in shown:
        record = failed(OSError("full"), "route.failed", **{name: number})
        if counted.is_first(record, seconds):
            lines.append(Events().format(record))
        lines += map(Events().format, counted.due(seconds))
        seconds += 60 / pages
    lines += map(Events().format, counted.due(float("inf")))
    assert [number for number in shown if not any(number in line for line in lines)] == []
    assert len(lines) <= 2 + 60 / SOUGHT_SECONDS + sum(map(len, shown)) / 1000


def test_shown_error_id_is_logged_within_ten_seconds() -> None:
    # finding: XV4
    counted = Counted()
    for number in ("ab12", "cd34", "ef56"):
        counted.is_first(failed(OSError("full"), "route.failed", error_id=number), 0.0)
    assert counted.due(SOUGHT_SECONDS - 1) == []
    (reported,) = counted.due(SOUGHT_SECONDS)
    assert "error_ids=cd34,ef56" in Events().format(reported)


def test_different_error_is_counted_separately() -> None:
    counted = Counted()
    others = [
        failed(OSError("full"), "route.failed"),
        failed(ValueError("full"), "route.failed"),
        failed(OSError("full"), "sweeper.failed"),
        failed(OSError("full"), "route.failed", route="home"),
    ]
    assert [counted.is_first(each, 0.0) for each in others] == [True] * 4
    assert not counted.is_first(others[0], 1.0)


def test_handler_queues_records_and_close_writes_all() -> None:
    # finding: R9
    written: list[logging.LogRecord] = []

    class Call:
        request_id = "request_id-1"
        hidden = frozenset({"an-open-sesame"})

    lines = Lines(LogSettings(), write=written.append)
    with asking(cast("Asker", Call())):
        lines.handle(failed(ValueError("an-open-sesame")))
        lines.handle(failed(ValueError("an-open-sesame")))
    lines.close()
    first, repeated = map(Events().format, written)
    assert "call=request_id-1" in first
    assert "an-open-sesame" not in first
    assert "repeated=1" in repeated


def test_aborted_upload_is_logged_as_short_line() -> None:
    # finding: R9
    class ClientDisconnect(Exception):
        pass

    written: list[logging.LogRecord] = []
    lines = Lines(LogSettings(), write=written.append)
    lines.handle(failed(ClientDisconnect()))
    lines.close()
    (logged,) = map(Events().format, written)
    assert logged.endswith("ERROR mcp.server request.aborted")


@pytest.mark.parametrize("name", TOOL_LOGGERS)
@pytest.mark.parametrize(
    ("error", "is_logged"),
    [(Declined("Buy it?"), False), (ValueError("no such tea"), True)],
)
def test_unaccepted_question_is_no_error_in_the_log_of_the_library(
    name: str, error: Exception, is_logged: bool
) -> None:
    logger = logging.getLogger(name)
    before = logger.filters[:]
    wrapped = RuntimeError("the tool failed")
    wrapped.__cause__ = error
    try:
        with log_as_before():
            quieten()
            for each in (error, wrapped):
                exc_info = (type(each), each, None)
                record = logging.LogRecord(name, logging.ERROR, "a.py", 1, "failed", (), exc_info)
                assert bool(logger.filter(record)) == is_logged
    finally:
        logger.filters[:] = before


def test_events_are_shown_unless_the_author_has_configured_a_handler() -> None:
    our_logger, authors = logging.getLogger("webapp"), logging.getLogger("flows")
    with log_as_before():
        our_logger.handlers[:], authors.handlers[:] = [], [logging.NullHandler()]
        show_events()
        assert [type(each.formatter) for each in our_logger.handlers] == [Events]
        assert not our_logger.propagate
        assert [type(each) for each in authors.handlers] == [logging.NullHandler]


def test_line_with_id_links_to_operators_search() -> None:
    record = logging.LogRecord("webapp", logging.WARNING, "", 1, "provider.failed", None, None)
    vars(record)["id"] = "a b&c"
    events = Events(search_url="https://tools.example.com/operator/search")
    assert events.format(record).endswith(
        " see=https://tools.example.com/operator/search?q=a%20b%26c"
    )
    assert "see=" not in Events().format(record)
    del vars(record)["id"]
    assert "see=" not in events.format(record)


async def test_recent_lines_are_limited_masked_and_found_by_id() -> None:
    class Call:
        hidden = ("a secret of the person",)

    recent, log = RecentLines(), logging.getLogger("webapp.tests")
    with recent.listening(), asking(cast("Asker", Call())):
        for number in range(LINES_AT_MOST + 5):
            log.warning("noted", extra={"id": f"e{number}"})
        log.warning("failed: %s", "a secret of the person", extra={"error_id": "ab12"})
        log.warning("without an id")
    log.warning("noted", extra={"id": "later"})
    assert recent.about(["e0", "later"]) == []
    assert [line.id for line in recent.about(["e2003"])] == ["e2003"]
    (failed,) = recent.about(["ab12"])
    assert "a secret" not in failed.text
    assert "failed: ***" in failed.text
