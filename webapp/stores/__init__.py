"""Where records are kept: one protocol, and a file for each place that fulfils it.

`store` has the protocol: sealed records with compare-and-set, all of a write or none of it, of one
owner. `sqlite` is one file for all processes of a machine: a writer thread that commits in groups
(`sqlite_writer`), readers on the loop, changes of others seen by `data_version` (`sqlite_changes`).
`postgres` is for several machines: what is read or written in one turn of the loop is one round
trip (`lanes`, `postgres_writer`), changes of others are heard by name (`postgres_changes`), and of
the servers that an address names one is used (`postgres_hosts`). `valkey` is for several machines
too: a script carries out what is written, on one server or a cluster.
`memory` is for tests and for servers that may forget. `opening` picks one by its address.

A store that moves elsewhere (`moving`) is fenced, read by `scan` and put in place there by `load`;
a fence is of the place, so that also a process of an older version is refused (`sqlite_fence`). The
same two make a file of rows, and a store of one (`backup_file`).

Promised: what was written is durable when `write` returns; version 0 means that neither id nor key
is taken; what is due is given to one caller. One contract suite holds all of them: tests/stores.

Knows no elicitation: what it keeps is sealed.
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
    Look,
    Networked,
    Record,
    Replicated,
    Store,
)

__all__ = [
    "Choosing",
    "Clocked",
    "Conflict",
    "Look",
    "Networked",
    "Record",
    "Replicated",
    "Store",
    "holds_something",
    "is_gone",
    "open_store",
    "why_not_opened",
    "without_password",
]
