"""A store in Valkey, or in Redis, for the processes of several machines.

All records of an owner are in one shard, whose number is part of the names of its keys. The records
and their indexes are therefore in one slot of a cluster, and one script (`write.lua`) checks and
changes all records of a write or none. A single server has one shard, a cluster has 64. The number
of shards is set when the store is created, and is stored in the store (`shards_of`).

The path of a write: `store` makes an `Entry` for each record (`layout`), and a `Gathering` (in
`changes`) combines the writes of one turn of the event loop. `server` sends them in one pipeline
that ends with WAITAOF, so no caller gets an answer before the data is on disk. The script publishes
the names of the written records, and `changes` in each other opening reads these records. A
published message may get lost, so watchers are asked to read again every 15 seconds, and after each
reconnect.

Guaranteed: if the server is killed, no acknowledged write is lost. Not guaranteed: a replica that
takes over may lack acknowledged writes. A server with settings that would lose data is refused at
the start, and the error has the configuration line to set.

No other folder imports these modules; `opening` uses `open_store` and `holds_something`.
"""

from webapp.stores.valkey.store import holds_something, open_store

__all__ = ["holds_something", "open_store"]
