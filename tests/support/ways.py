"""The library and the protocol revision that a parametrized test runs with."""

import pytest

from tests.support.mcp_server import LEGACY, LIBRARIES, MODERN

REVISIONS = (LEGACY, MODERN)


def run_each_way(metafunc: pytest.Metafunc, *, every: bool = True) -> None:
    """Parametrize a test with each library and revision, or with two of the four pairs.

    The two pairs depend on the test's name, so that the suite as a whole covers all pairs.
    """
    has_library = "library" in metafunc.fixturenames
    if has_library and "revision" in metafunc.fixturenames:
        pairs = [(library, revision) for library in LIBRARIES for revision in REVISIONS]
        if not every:
            is_even = len(metafunc.definition.name) % 2 == 0
            pairs = [pairs[0], pairs[3]] if is_even else [pairs[1], pairs[2]]
        metafunc.parametrize(("library", "revision"), pairs)
    elif has_library:
        metafunc.parametrize("library", LIBRARIES)
    elif "revision" in metafunc.fixturenames:
        metafunc.parametrize("revision", REVISIONS)
