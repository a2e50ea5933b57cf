"""What a command leaves in this process: it redirects the log, which the next test listens to."""

import logging
from collections.abc import Iterator

import pytest

OURS = ("webapp", "flows")


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in OURS]
    before = [(each.handlers[:], each.level, each.propagate) for each in loggers]
    yield
    for each, (handlers, level, propagate) in zip(loggers, before, strict=True):
        each.handlers[:] = handlers
        each.setLevel(level)
        each.propagate = propagate
