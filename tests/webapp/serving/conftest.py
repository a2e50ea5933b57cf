"""Fixtures for serving in the test's process, such as the log that it redirects."""

from collections.abc import Iterator

import pytest

from tests.support.cli import log_as_before


@pytest.fixture(autouse=True)
def log_of_this_process() -> Iterator[None]:
    with log_as_before():
        yield
