"""The one door to a store: values go in at the version that was read, and come out at the next.

`values` has what is kept, beside those of `flows`; `rows` the one `write`, with what reads;
`owners` makes the tag that a person's rows begin with and the key that seals them, `ids` the ids,
of which none can be guessed, and `seal` binds each record to its row. What a write changes is told
in its owner's `chain`, beside it: what is told says `entries`; `heads` signs how far all chains
have come, and `verification` holds them against that. `high_water` notices a store that has lost
what it had acknowledged.

The one path: `Rows.write` -> the owner's data key -> sealed -> with an entry of the chain -> the
store's compare-and-set -> the values with their new versions, or Conflict.

Promised: every look-up is by owner and id; an owner's tag cannot be enumerated; a record's table,
id, owner, kind and version are sealed with it, so that no row stands in for another.

May be called by everything that keeps something; imports `flows` and `webapp.stores`.
"""
