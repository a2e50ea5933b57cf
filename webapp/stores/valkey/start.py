"""The checks of a Valkey server before it is used: would it lose acknowledged data?

A managed service may forbid CONFIG. The check then uses only INFO, which says whether there is an
append-only log and which keys are evicted. INFO does not say how often the log is written to disk.
Each write waits for the disk anyway, for up to a second with `everysec`.
"""

import re
from collections.abc import Mapping
from typing import Any

from redis.exceptions import ResponseError

from flows.errors import StoreUnavailable
from webapp.stores.valkey.layout import LAYOUT_KEY, LAYOUT_VERSION, SHARDS_OF_A_CLUSTER
from webapp.stores.valkey.server import ValkeyServer

_OLDEST = (7, 2)
_KEPT = "set this in the Valkey server's configuration, or ask its operator to set it: "


async def check_server(server: ValkeyServer) -> None:
    """Check the server. Raises StoreUnavailable if data may be lost, with the line to set."""
    shown = server.address.shown
    for info in await server.ask_each("INFO"):
        check_info(shown, info)
    try:
        configured = await server.ask_each("CONFIG GET", "append*")
    except ResponseError:  # CONFIG is forbidden or renamed
        return
    for config in configured:
        if (often := config.get("appendfsync")) not in (None, "always"):
            raise StoreUnavailable(
                f"the store {shown} can lose the writes of the last second, because its "
                f"appendfsync is {often}: {_KEPT}appendfsync always"
            )


def check_info(shown: str, info: Mapping[str, Any]) -> None:
    """Check the answer of INFO. Raises StoreUnavailable if the server may lose data."""
    version = str(info.get("redis_version", "0"))
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < _OLDEST:
        raise StoreUnavailable(
            f"the store {shown} has version {version}, which cannot confirm that a write is on "
            "disk: use Valkey, or Redis 7.2 or newer"
        )
    if info.get("role") != "master":
        raise StoreUnavailable(
            f"the store {shown} is a read-only replica: set ELICIT_STORE to the address of its "
            "primary"
        )
    if not info.get("aof_enabled"):
        raise StoreUnavailable(
            f"the store {shown} loses all data when its server stops: {_KEPT}appendonly yes and "
            "appendfsync always"
        )
    policy = str(info.get("maxmemory_policy", ""))
    # `volatile-` policies evict only keys with a time to live, and our keys have none.
    if policy.startswith("allkeys"):
        raise StoreUnavailable(
            f"the store {shown} deletes saved records when its memory is full ({policy}): "
            f"{_KEPT}maxmemory-policy noeviction"
        )


async def shards_of(server: ValkeyServer) -> int:
    """Return the store's number of shards. If the store is new, set that number first."""
    shards = SHARDS_OF_A_CLUSTER if server.is_cluster else 1
    ours = f"{LAYOUT_VERSION} {shards}"
    created, found = await server.run([("SET", LAYOUT_KEY, ours, "NX"), ("GET", LAYOUT_KEY)])
    for answer in (created, found):
        if isinstance(answer, StoreUnavailable):
            raise answer
    version, _, count = found.decode().partition(" ")
    if version != str(LAYOUT_VERSION) or not count.isdecimal():
        raise StoreUnavailable(
            f"the store {server.address.shown} has layout {found.decode()!r}, written by a newer "
            f"version of elicit; this version can read layouts up to {LAYOUT_VERSION}: update "
            "elicit"
        )
    return int(count)
