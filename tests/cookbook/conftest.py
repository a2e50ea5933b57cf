"""Fixtures: an example, served to one person in each cell."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

import pytest

from tests.cookbook.servers import CELLS, DECLARES, OPTIONS, Vendors, load
from webapp.testing import AskedPerson

Opened: TypeAlias = AbstractAsyncContextManager[tuple[AskedPerson, Any]]


@pytest.fixture
def vendors() -> Vendors:
    return Vendors()


@pytest.fixture(params=CELLS, ids=" ".join)
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
