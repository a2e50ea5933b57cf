"""The log: an event, its ids, and nothing that was not meant for it."""

import logging

from webapp.logs import Events


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
