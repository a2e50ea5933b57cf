"""Which library and which protocol revision a test runs on.

A test that takes both runs on two of the four pairs, so chosen that the suite as a whole covers
all; one that is marked `every_way` runs on each of the four.
"""

from typing import Any

import pytest

from tests.support.mcp_server import LEGACY, LIBRARIES, MODERN, new_server

REVISIONS = (LEGACY, MODERN)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "every_way: on each library with each protocol revision")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    has_library = "library" in metafunc.fixturenames
    if has_library and "revision" in metafunc.fixturenames:
        pairs = [(library, revision) for library in LIBRARIES for revision in REVISIONS]
        if metafunc.definition.get_closest_marker("every_way") is None:
            is_even = len(metafunc.definition.name) % 2 == 0
            pairs = [pairs[0], pairs[3]] if is_even else [pairs[1], pairs[2]]
        metafunc.parametrize(("library", "revision"), pairs)
    elif has_library:
        metafunc.parametrize("library", LIBRARIES)
    elif "revision" in metafunc.fixturenames:
        metafunc.parametrize("revision", REVISIONS)


@pytest.fixture
def server(library: str) -> Any:
    return new_server(library)
