"""The kinds of questions: visits, forms, secrets, confirmations, gates, several at once.

Each module is one *kind*: its verb, its request, the facts that identify the question, its stored
terms, and the conversion of an answer for the tool. `oauth`, `api_key` and `payment` are kinds too:
their verbs are in `flows.elicit`, their requests in `flows.requests`, and the rest in `flows.oauth`
and `flows.payments`.

The path of a question: a verb checks its arguments (InvalidQuestion) and returns a Question, which
is not asked yet. At the `await`, the call computes the digest of `facts()`, and the record stores
the terms.

Guarantees: everything that a person sees is among the facts, so an answer never counts for another
question. A kind's module does not present questions.

Callers: `flows.elicit`, which exports all verbs, and webapp. Imports `flows.question`, schemas and
values.
"""
