"""The library and the protocol revision that a parametrized test runs with.

A test with a library and a revision runs once with each revision, each time with another library.
A test with only a library runs with each library if it names `library` itself. If only a fixture of
the test uses the library, it runs with one library, which changes from test to test. With
`--whole`, as in `make soak`, every test runs with all combinations.
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

    Fail if there are fewer cases than stores, because a store would not be used.
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

    With `every`, a test that uses both runs with all four pairs, otherwise with two of them. The
    choice depends on the test's name, so that the suite as a whole covers all pairs. `revisions`
    are the names that the tests use for the two revisions.
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
    """Return the items of `every_way` tests to leave out.

    For each combination of the other parameters, two items stay: one for each revision, each with
    another library. The next combination swaps the libraries. A test without other parameters
    keeps all four items.
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
