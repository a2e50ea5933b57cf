"""Events out: addresses of the operator's are told what happens, by signed webhooks of our own.

`addresses` has where they go, which types each wants, and how one is signed (Standard Webhooks);
`outbox` makes the rows, `backlog` counts what waits, `sender` sends it, and `service` is what the
rest of the house calls: list, replay, test, resume.

The one path: a write gives a question, a payment or an account another word (`records.entries`) ->
a row for each address that wants to hear of it, in the same write and of the same owner -> the
process that wrote it sends it at once; any other one, when it is due -> a claim by compare-and-set
-> one request by the guarded way out -> sent, or tried again by the schedule, or given up.

Promised: an event is in the store with the very change that it tells of; it is sent at least once,
under one id however often; of one question, one payment or one account each address hears in
order: an event waits for the one before it, and for no other. Whoever is down slows no write and
no other address. Nothing is told of a person, nor of what was answered: ids, kind and status. Where
no address is set, nothing is written and nothing is looked for.

Not promised: once. Who dies between the request and its note has it sent again, so a receiver goes
by `webhook-id`.

May be called by what builds the service, the sweeper, the API and the commands.
"""
