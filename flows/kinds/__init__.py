"""What can be asked: a page elsewhere, a form, a secret, a yes, a gate, several at once.

Each module is one *kind*: its verb, the request that this makes, the facts that tell this question
from any other, its terms as they are stored, and how an answer becomes what the tool gets. `oauth`
and `payment` are kinds too; their verbs stand in `flows.elicit` and their requests in
`flows.requests`, as two rooms of their own do the rest.

The one path: a verb checks its arguments (InvalidQuestion) and gives a Question; nothing has been
asked. At the `await` the call digests `facts()`, and the record keeps the terms.

Promised: whatever a person is shown is among the facts, so that an answer never counts for another
question; a kind's module holds no way to show anything.

May be called by `flows.elicit`, which has all verbs, and by webapp; imports `flows.question`,
schemas and values.
"""
