"""Fixtures: an example, served to one person.

Each test runs with each revision and each declaration. The two libraries alternate between these
cells. With `--whole`, as in `make soak`, each test runs in every cell. The test of the page always
runs the usual paths in every cell.
"""

import zlib
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

import pytest

from tests.cookbook.servers import CELLS, DECLARES, LIBRARIES, OPTIONS, Vendors, load
from webapp.testing import AskedPerson

Opened: TypeAlias = AbstractAsyncContextManager[tuple[AskedPerson, Any]]


@pytest.fixture
def vendors() -> Vendors:
    return Vendors()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    cells = CELLS
    if not metafunc.config.getoption("--whole"):
        ways, libraries = dict.fromkeys(cell[1:] for cell in CELLS), list(LIBRARIES)
        first = zlib.crc32(metafunc.definition.originalname.encode())
        cells = [(libraries[(first + n) % 2], *way) for n, way in enumerate(ways)]
    for name in {"serve", "cell"}.intersection(metafunc.fixturenames):
        metafunc.parametrize(name, cells, ids=" ".join, indirect=name == "serve")


@pytest.fixture
def serve(
    request: pytest.FixtureRequest, elicit_person: Any, vendors: Vendors
) -> Callable[..., Opened]:
    """Return a function that serves an example to a person, with what the example needs."""
    library, revision, declares = request.param

    @asynccontextmanager
    async def serve(name: str, **options: Any) -> AsyncGenerator[tuple[AskedPerson, Any]]:
        example = load(name, library)
        own = OPTIONS.get(name, {})
        options = {"revision": revision, "declares": DECLARES[declares], **own, **options}
        async with elicit_person(example.mcp, outside=vendors, **options) as person:
            yield person, example

    return serve
