"""Payments: asked for at a provider's checkout page, verified, then used once or refunded.

Terms: a *provider* collects the money, a *merchant account* is the operator's account there, a
*session* is one checkout, a *receipt* is what a tool receives, and an *event* is the content of a
webhook or of a fetch.

The path of a payment: `checkout_page` requests a checkout, with an idempotency key made of the
elicitation's id and the attempt's number. The person pays at the provider, and an event or a fetch
reports the result. `gateway` compares amount, currency, live mode, account and session with the
question. The receipt is then open, claimed, spent or refunded. The table in `receipt` has the
allowed changes. The money of an UnresolvedPayment may still arrive after its question ended.

Each folder contains one provider's wire format: `stripe`, `paypal`, `mollie`, and `declared` for
providers that are described as data. Vendor names appear only there.

Guarantees: a provider's message about another program's session is ignored. A repeated request has
the same bytes and the same key. A payment of 9 EUR never answers a question for 90 EUR.
"""
