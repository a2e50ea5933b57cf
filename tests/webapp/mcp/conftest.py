"""Fixtures that choose the library and the protocol revision of a test.

A test that uses both fixtures runs on two of the four pairs. A test marked `every_way` runs on all
four.
"""

from typing import Any

import pytest

from tests.support.mcp_server import new_server
from tests.support.ways import run_each_way


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "every_way: on each library with each protocol revision")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    run_each_way(metafunc, every=bool(metafunc.definition.get_closest_marker("every_way")))


@pytest.fixture
def server(library: str) -> Any:
    return new_server(library)
