"""What stands in a row of the store: whose it is, what it is called, how it is sealed.

`rows` turns values of `flows` into sealed records and back, `owners` makes the tag that a person's
rows begin with and the key that seals them, `ids` and `randomness` make ids that nobody can guess.

Promised: every look-up is by owner and id; an owner's tag cannot be enumerated; a record's table,
id, owner, kind and version are sealed with it, so that no row stands in for another.

May be called by everything that keeps something; imports `flows` and `webapp.stores`.
"""
