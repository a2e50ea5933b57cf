"""The stores of records: one protocol, and an implementation for each kind of store.

`store` has the protocol: sealed records with compare-and-set. A write changes one or more records
of one owner: all of them or none. The implementations are:

- `sqlite` is one file for all processes of a machine. A writer thread commits jobs in groups
  (`sqlite_writer`), and readers run on the event loop. Changes by other processes are found with
  `data_version`.
- `postgres` is for several machines. Reads or writes of one turn of the event loop share a round
  trip (`lanes`). Changes by other processes arrive as notifications
  (`postgres_changes`). If the address lists several servers, `postgres_hosts` chooses one.
- `valkey` is for several machines, too. Scripts execute the writes, on one server or a cluster.
- `sqlite` also has a store without a file, for tests and for servers that may lose their records.

`opening` chooses an implementation by the address. `moving` moves a store: it sets a fence, reads
with `scan` and writes the copies with `load`. The fence is stored in the store itself, so it also
stops processes of an older version. `backup_file` writes all rows to a file with `scan`,
and restores the file with `load`.

Guarantees: a write is durable when `write` returns. A write with version 0 succeeds only if neither
the id nor the key is in use. `due` gives a record to one caller. The contract suite in
tests/webapp/stores tests all stores.

Stores know nothing about elicitations, because their records are sealed.
"""

from webapp.stores.opening import (
    holds_something,
    is_gone,
    open_store,
    why_not_opened,
    without_password,
)
from webapp.stores.store import (
    Choosing,
    Clocked,
    Conflict,
    Networked,
    Record,
    Replicated,
    Store,
    WatchHint,
)

__all__ = [
    "Choosing",
    "Clocked",
    "Conflict",
    "Networked",
    "Record",
    "Replicated",
    "Store",
    "WatchHint",
    "holds_something",
    "is_gone",
    "open_store",
    "why_not_opened",
    "without_password",
]
