"""The library and the protocol revision that a parametrized test runs with.

A test that does not name `library` itself runs on the diagonal: it sees each revision once, and the
library changes from test to test. With `--whole`, as in `make soak`, it runs on each library.
"""

import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from inspect import signature
from itertools import cycle, product
from typing import TypeVar

import pytest

from tests.support.mcp_server import LEGACY, LIBRARIES, MODERN

REVISIONS = (LEGACY, MODERN)
A = TypeVar("A")
B = TypeVar("B")


def with_stores(cases: Sequence[A], stores: Sequence[B], *, whole: bool) -> Iterable[tuple[A, B]]:
    """Return each case with each store if `whole`, otherwise each case with the next store.

    There are at least as many cases as stores, so that each store is used.
    """
    assert len(cases) >= len(stores)
    return product(cases, stores) if whole else zip(cases, cycle(stores))


def protocol(revision: str) -> str:
    """Return the protocol revision that a test calls `revision`."""
    return "2025-11-25" if revision == LEGACY else revision


def run_each_way(
    metafunc: pytest.Metafunc, *, every: bool = False, revisions: Sequence[str] = REVISIONS
) -> None:
    """Parametrize a test with the libraries and revisions that its fixtures use.

    With `every`, a test that uses both runs with each pair, otherwise with two of the four. The
    choice depends on the test's name, so that the suite as a whole covers all pairs. `revisions`
    are the two names that the tests use for them.
    """
    is_whole = metafunc.config.getoption("--whole")
    is_odd = bool(zlib.crc32(metafunc.definition.originalname.encode()) % 2)
    libraries = LIBRARIES[::-1] if is_odd else LIBRARIES
    has_library = "library" in metafunc.fixturenames
    if has_library and "revision" in metafunc.fixturenames:
        if every or is_whole:
            pairs = [(library, revision) for library in LIBRARIES for revision in revisions]
        else:
            pairs = list(zip(libraries, revisions, strict=True))
        metafunc.parametrize(("library", "revision"), pairs)
    elif has_library:
        names_library = "library" in signature(metafunc.function).parameters
        metafunc.parametrize("library", LIBRARIES if names_library or is_whole else libraries[:1])
    elif "revision" in metafunc.fixturenames:
        metafunc.parametrize("revision", revisions)


def off_the_library_diagonal(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Return the cells of `every_way` tests to leave out.

    Each value of the other parameters keeps both revisions, with a library for each. The libraries
    are swapped from value to value. A test without other parameters keeps all four pairs.
    """
    matrices: dict[object, dict[str, list[pytest.Function]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("every_way"):
            own = {
                k: v for k, v in item.callspec.params.items() if k not in ("library", "revision")
            }
            matrices[item.path, item.originalname][repr(own)].append(item)
    left_out = set[pytest.Item]()
    for cells in matrices.values():
        if len(cells) < 2:
            continue
        for number, pairs in enumerate(cells.values()):
            if len(pairs) == len(LIBRARIES) * len(REVISIONS):
                left_out.update(pair for pair in pairs if _is_odd(pair) != bool(number % 2))
    return left_out


def _is_odd(cell: pytest.Function) -> bool:
    given = cell.callspec.params
    return bool((LIBRARIES.index(given["library"]) + REVISIONS.index(given["revision"])) % 2)
