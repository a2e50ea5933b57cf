"""The elicitation service: start, open, settle and claim questions, and wake their waiters.

`service` has the only retry loops around `Store.write`. They apply a function of
`flows.elicitation` to the current value, and apply it to the new value if another write was first.
`Rows` (`webapp.records`) reads the values.
`complete` is the only way to accept an answer, in time or late. `waiters` are the waiting calls of
this process, and `watcher` wakes them when other processes write. `links` builds URLs, `aliases`
stores authors' own ids, and `plugins` runs the operator's hooks.

The sequence: a waiter is registered before the link is sent -> something settles the record -> the
write is durable -> the waiter is woken, here or in another process -> the waiter reads the store.

Guarantees: a call acts on the state in the store, and a wake-up is only a hint. A question is
settled once. The service distinguishes first, duplicate and late answers, and answers to unknown
questions.

Risks: anything that can happen between two awaits. tests/crash ends the process at these points.
"""
