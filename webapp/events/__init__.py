"""Outgoing webhooks: signed events that are sent to addresses of the operator.

`addresses` defines where events go, which types each address receives, and how events are signed
(Standard Webhooks). `outbox` creates the rows and counts the waiting events, `sender` sends them, and `service` is the interface for the rest of the project: list, replay, test, resume.

The path of an event: a write changes the status of a question, a payment or an account
(`records.entries`). The same write stores a row, with the same owner, for each address that
receives this type. The process that wrote the row sends the event at once; any other process sends
it when it is due. The sender claims the row by compare-and-set, makes one request with the outbound
HTTP client, and then marks the row as sent, schedules the next try, or gives up.

Guarantees: an event is stored together with the change that it reports. It is sent at least once,
always under the same id. Each address receives the events of one question, payment or account in
order: an event waits for its predecessor and for no other event. An unreachable receiver slows no
write and no other address. Events contain ids, kind and status, but nothing about the person or the
answer. Without addresses, nothing is written or read.

Not guaranteed: exactly one delivery. If the process dies after the request and before it marks the
row, the event is sent again, so receivers must deduplicate by `webhook-id`.

Callers: the code that builds the service, the sweeper, the API and the commands.
"""
