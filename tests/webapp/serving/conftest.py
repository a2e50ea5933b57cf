"""What serving leaves in this process: it redirects the log, which the next test listens to."""

from collections.abc import Iterator

import pytest

from tests.support.cli import log_as_before


@pytest.fixture(autouse=True)
def log_of_this_process() -> Iterator[None]:
    with log_as_before():
        yield
