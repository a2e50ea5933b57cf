"""Fixtures that choose the library and the protocol revision of a test.

A test that uses both fixtures runs on two of the four pairs. A test marked `every_way` runs on all
four. If it has other parameters too, each of their values runs on both revisions, and the library
changes from value to value. With `--whole`, each value runs on all four pairs.
"""

from typing import Any

import pytest

from tests.support.mcp_server import new_server
from tests.support.ways import off_the_library_diagonal, run_each_way


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "every_way: on each library with each protocol revision")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    run_each_way(metafunc, every=bool(metafunc.definition.get_closest_marker("every_way")))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--whole"):
        return
    left_out = off_the_library_diagonal(items)
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def server(library: str) -> Any:
    return new_server(library)
