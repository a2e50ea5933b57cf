"""New stores of each kind that several processes can share. Each is given as an address."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from tests.support.postgres_server import fresh_database
from tests.support.valkey_server import fresh_valkey


@asynccontextmanager
async def _sqlite(folder: Path) -> AsyncIterator[str]:
    folder.chmod(0o700)  # noqa: ASYNC240 - one call
    yield f"sqlite:///{folder}/store.db"


@asynccontextmanager
async def _postgres(folder: Path) -> AsyncIterator[str]:
    async with fresh_database() as url:
        yield url


@asynccontextmanager
async def _valkey(folder: Path) -> AsyncIterator[str]:
    yield fresh_valkey().url


STORES: Mapping[str, Callable[[Path], AbstractAsyncContextManager[str]]] = {
    "sqlite": _sqlite,
    "postgres": _postgres,
    "valkey": _valkey,
}
