"""The elicitation service: start, open, settle and claim questions, and wake their waiters.

`service` has the only retry loop around `Store.write`. It applies a function of `flows.elicitation`
to the current value, and decides again if another write was first. `complete` is the only way to
accept an answer, in time or late. `waiters` are the waiting calls of this process, and `watcher`
wakes them when other processes write. `links` builds URLs, `aliases` stores authors' own ids, and
`plugins` runs hooks at each stage.

The sequence: a waiter is registered before the link is sent -> something settles the record -> the
write is durable -> the waiter is woken, here or in another process -> the waiter reads the store.

Guarantees: a wake-up is a hint and the store has the truth; a question is settled once; first,
duplicate, late and unknown answers are distinguished.

Risks: anything that can happen between two awaits. tests/crash covers the crash windows.
"""
