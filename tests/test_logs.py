"""The log: an event, its ids, and nothing that was not meant for it."""

import logging
from typing import cast

from flows.question import Asker, asking
from webapp.logs import Events, mask_secrets


def line(message: str, **extra: object) -> str:
    record = logging.LogRecord("webapp.routes", logging.WARNING, "", 0, message, (), None)
    vars(record).update(extra)
    return Events().format(record)


def test_an_event_stands_with_the_ids_that_it_was_given() -> None:
    said = line("provider.failed", error_id="ab12", id="e1")
    assert said.endswith("WARNING webapp.routes provider.failed error_id=ab12 id=e1")


def test_an_event_without_ids_is_one_line() -> None:
    assert line("app.failed").endswith("webapp.routes app.failed")
    assert "\n" not in line("app.failed")


async def test_what_a_tool_was_told_in_confidence_is_not_in_its_traceback() -> None:
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
    said = logging.Formatter().format(record)
    assert "an-open-sesame" not in said
    assert "no such key: ***, abc" in said
    assert "in fail" in said


def test_outside_of_a_call_a_record_stays_as_it_is() -> None:
    record = logging.LogRecord("mcp", logging.ERROR, "", 0, "Error in %s", ("tool",), None)
    assert mask_secrets(record)
    assert (record.msg, record.args) == ("Error in %s", ("tool",))
