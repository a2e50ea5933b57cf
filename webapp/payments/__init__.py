"""Payment processing: checkouts, webhooks, the ledger and refunds.

The flow: `checkouts` asks the provider for a page -> `events` receives an event, which is stored
before it is answered, and looks up its change in the table of `flows.payments.events` ->
`verification` compares a session with its question -> `ledger` records the payment, by
compare-and-set -> the waiting call is settled. `checkouts` polls providers whose webhooks do
not arrive. `refunds` refunds payments, and `unresolved` tracks sessions that may still be paid.

Guarantees: a webhook is answered with 2xx only after the write is durable. A payment is recorded
once. Every request to a provider is stored before it is sent.
"""
