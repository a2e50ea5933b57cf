"""What a command leaves in this process: it redirects the log, which the next test listens to."""

import logging
from collections.abc import Iterator
from pathlib import Path

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


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own for commands that run in this process."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path
