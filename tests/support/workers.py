"""Two workers of one server, each on its own port so that a test can choose between them.

To clients they are one server: they share the store and the public address, which is the first
worker's.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.mcp_server import ServerEnv, server_env
from tests.support.users import Answer, Talk, answered, opened_session, sent
from webapp.stores import open_store


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Requests to one of two workers. `at` is 0 or 1."""

    envs: tuple[ServerEnv, ServerEnv]

    async def sent(self, at: int, **options: Any) -> Talk:
        return await sent(self.envs[at].mcp_url, **self._named(options))

    async def answered(self, at: int, **options: Any) -> Answer:
        return await answered(self.envs[at].mcp_url, **self._named(options))

    @asynccontextmanager
    async def session(self, at: int = 0, **options: Any) -> AsyncIterator[dict[str, str]]:
        """Open a session at this worker, and provide the headers of its requests."""
        headers = await opened_session(self.envs[at].mcp_url, **self._named(options))
        try:
            yield headers
        finally:
            await self.answered(at, method="DELETE", **{**options, "headers": headers})

    def _named(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Add a Host header with the server's public address, for requests to either port."""
        host = self.envs[0].url.removeprefix("http://")
        return {**options, "headers": {"host": host, **(options.get("headers") or {})}}


@asynccontextmanager
async def two_workers(
    make: Callable[[], Any], *, store: str, **options: Any
) -> AsyncIterator[Workers]:
    """Serve two workers, each with its own server from `make` and its own opening of the store."""
    first, second = await open_store(store), await open_store(store)
    try:
        async with (
            server_env(make(), store=first, **options) as one,
            server_env(
                make(), store=second, public_url=one.url, is_alone=False, **options
            ) as other,
        ):
            yield Workers(envs=(one, other))
    finally:
        await first.aclose()
        await second.aclose()


def in_file(folder: Path) -> str:
    """Return the address of a store in a file of this folder."""
    folder.chmod(0o700)
    return f"sqlite:///{folder}/store.db"
