"""Fixtures for commands that run in the test's process, such as the log that they redirect."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import log_as_before


@pytest.fixture(autouse=True)
def log_of_this_process() -> Iterator[None]:
    with log_as_before():
        yield


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set a fresh home folder for commands that run in this process."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path
