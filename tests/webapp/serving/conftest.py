"""What serving leaves in this process: it redirects the log, which the next test listens to."""

from collections.abc import Iterator

import pytest

from tests.support.cli import log_as_before
from tests.support.serving import bound


@pytest.fixture(autouse=True)
def log_of_this_process() -> Iterator[None]:
    with log_as_before():
        yield


@pytest.fixture
def free_port() -> int:
    """Nobody's at the moment."""
    with bound("127.0.0.1") as socket:
        port: int = socket.getsockname()[1]
    return port
