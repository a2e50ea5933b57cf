"""Payment processing: checkouts, webhooks, the ledger and refunds.

The flow: `checkouts` asks the provider for a page -> `webhooks` receives an event, which is stored
before it is answered -> `verification` decides what the provider's status of a session means ->
`ledger` records the payment, by compare-and-set -> the waiting call is settled. `turns` polls
providers whose webhooks do not arrive. `early_events`, `late_events` and `orphaned_events` handle
events that arrive at another time, `unsigned_notices` those that prove nothing by themselves.
`refunds` refunds payments, and `unresolved` tracks sessions that may still be paid.

Guarantees: a webhook is answered with 2xx only after the write is durable. A payment is recorded
once. Every request to a provider is stored before it is sent.
"""
