"""Payments, acted out: checkouts, webhooks, the ledger, and what came too early or too late.

The one path: `checkouts` asks the provider for a page -> `webhooks` takes an event, kept before it
is answered -> `verification` decides what a provider's word about a session amounts to -> `ledger`
has the payment, by compare-and-set -> the waiting call is settled. `turns` asks a provider that
sends nothing; `early_events`, `late_events`, `orphaned_events` and `unsigned_notices` are words
that come at another time, or prove nothing by themselves; `refunds` gives money back; `unresolved`
is what may still be paid.

Promised: 2xx only after the write is durable; money is told once; whatever is asked of a provider
is stored before it is asked.
"""
