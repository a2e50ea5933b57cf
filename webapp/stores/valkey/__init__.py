"""A store in Valkey, or in Redis, for the processes of several machines.

All records of an owner stand in one shard, which is a number in the names of its keys: the records
and every index of them are in one slot of a cluster, so that one script (`write.lua`) checks and
changes all of a write or none of it. A server by itself has one shard, a cluster 64; which it is
was settled when the store was made, and stands in it (`start`).

The path of a write: `store` makes its `Entry` (`layout`), `gathering` puts the writes of one turn
of the loop together, and `server` sends them in one pipeline that ends with WAITAOF, so that nobody
is answered before the disk has it. The script publishes the names of what it wrote, and `changes`
of each other opening reads these records. What is published may be lost, so that every 15 seconds,
and whenever the connection comes back, watchers are told to look again.

Promised: nothing is acknowledged that a kill of the server takes back. Not promised: that a replica
which takes over has everything that was acknowledged. The server is asked at the start for what
would lose data, and refused with the line to set.

Nobody else imports a module of this folder; `open_store` and `holds_something` are for `opening`.
"""

from webapp.stores.valkey.store import holds_something, open_store

__all__ = ["holds_something", "open_store"]
