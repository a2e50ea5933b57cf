"""Records: the only access to a store. A write fails if the row has changed since it was read.

`values` defines the stored types that `flows` does not define. `rows` has the only `write`, and the
reads. `owners` makes the owner tag, with which the ids of a person's rows begin. It encrypts each
record with the owner's data key, and binds the ciphertext to its row. `ids` makes ids that cannot
be guessed. Every write records its changes in its owner's `chain`; `entries` defines what is
recorded. `heads` signs the current end of all chains, and `verification` compares the chains with
heads. `high_water` detects a store that has lost acknowledged writes.

The sequence of `Rows.write`: get the owner's data key -> seal the values -> add an entry to the
owner's chain -> the store's compare-and-set -> return the values with their new versions, or raise
Conflict.

Guarantees: every look-up is by owner and id; an owner's tag cannot be enumerated; a record's table,
id, owner, kind and version are sealed with it, so no row can replace another.
"""
