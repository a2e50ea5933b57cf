"""A payment: asked for at a provider's checkout page, proven, received once, or refunded.

The words: a *provider* takes the money, a *merchant account* is ours there, a *session* is one
checkout, a *receipt* is what a tool gets, an *event* is what a webhook told or a fetch found.

The one path: `session` asks for a checkout, with an idempotency key of our id and attempt -> the
person pays there -> an event or a fetch says what became of it -> `gateway` holds amount, currency,
live mode, account and our own session against what was asked -> `receipt` opens, is taken, spent or
refunded, by one table. `unresolved` is what may still be paid after its question ended.

A folder is one provider's wire format: `stripe`, `paypal`, `mollie`, and `declared` for those that
are data. A vendor's name stands there and nowhere else.

Promised: no word of a provider's about a session that is not ours settles anything; the same
request is repeated in the same bytes under the same key; 9 EUR paid never answers 90 EUR asked.
"""
