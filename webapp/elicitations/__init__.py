"""The service of elicitations: start, open, settle, take; and who is waiting for them.

`service` is the one retry loop over `Store.write`: it applies a function of `flows.elicitation` to
what is there, and a loser decides again. `complete` is the one door for an answer, in time or late.
`waiters` hold the calls of this process that wait, `watcher` wakes them for what others write,
`links` makes addresses, `aliases` keeps an author's own ids, `plugins` have a say at each stage.

The one path: a waiter is registered before the link leaves -> something settles the record -> the
write is durable -> the waiter is woken, here or in another process -> it reads the store.

Promised: a wake is a hint and the store the truth; settled once; first, duplicate, late and unknown
are told apart.

What could go wrong: everything between two awaits. The crash windows are in tests/crash.
"""
