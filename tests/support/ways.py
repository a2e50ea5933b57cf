"""Which library and which protocol revision a test runs on, where it takes them."""

import pytest

from tests.support.mcp_server import LEGACY, LIBRARIES, MODERN

REVISIONS = (LEGACY, MODERN)


def run_each_way(metafunc: pytest.Metafunc, *, every: bool = True) -> None:
    """On each library with each revision; or else on two of the four pairs.

    These are so chosen that the suite as a whole covers all.
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
