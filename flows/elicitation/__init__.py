"""One elicitation from its question to its answer, as values and one table.

The words: an *elicitation* is the durable record of one question to one person; an *attempt* is one
press of Continue, with a state of its own; a *run* is one tool call with all its legs, a *leg* one
HTTP request of it; a *lease* says which leg is using an outcome just now.

The one path: `states.start` -> pending -> opened (an attempt) -> exchanging, where a provider's
code is redeemed -> accepted, or one of declined, denied, cancelled, expired, failed, superseded.
What may follow what stands in `states.TRANSITIONS`; what a provider's proof may still change after
the end, in `states.LATE`; what is true of all questions of one kind, in `traits`, and what an
answer counts by, in `proof`. Each change is a function from a record and a moment to the next
record: it reads no clock and writes nothing.

Promised: a state that is final maps to nothing but LATE; an outcome is taken by one run, and by one
leg of it until its lease is out; a code or a state is good for one attempt.

What could go wrong: two processes decide on two readings of one record. So nothing here is done;
the service applies these functions in a compare-and-set, and a loser decides again on what won.

May be called by everything; imports errors and values only.
"""
