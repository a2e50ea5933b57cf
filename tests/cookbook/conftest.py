"""Fixtures: an example, served to one person.

Each test runs with each revision and each declaration, and the library changes from cell to cell.
With `--whole`, as in `make soak`, each test runs in every cell.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

import pytest

from tests.cookbook.servers import CELLS, DECLARES, OPTIONS, Vendors, cells_in_turn, load
from webapp.testing import AskedPerson

Opened: TypeAlias = AbstractAsyncContextManager[tuple[AskedPerson, Any]]


@pytest.fixture
def vendors() -> Vendors:
    return Vendors()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    is_whole = metafunc.config.getoption("--whole")
    cells = CELLS if is_whole else cells_in_turn(metafunc.definition.originalname)
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
