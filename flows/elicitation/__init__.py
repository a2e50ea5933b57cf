"""Elicitations: questions to a person from start to answer, as values and one state table.

Terms: an *elicitation* is the stored record of one question to one person. An *attempt* is one
press of Continue, with its own `state` parameter. A *run* is one tool call with all its HTTP
requests. A *lease* says which request currently uses an outcome; its field `leg` is the request's
id.

The path of an elicitation: created as pending -> opened (an attempt) -> exchanging, while a
provider's code is redeemed -> accepted, or one of declined, denied, cancelled, expired, failed,
superseded. `states.TRANSITIONS` has the allowed changes, and `states.LATE` the changes that a
provider's late proof may still cause. `traits` has the properties of each kind of question, and the
proofs that it accepts. Each change is a function from a record and a time to the next record.
It reads no clock and writes nothing.

Guarantees: a final status only changes according to LATE. An outcome is claimed by one run, and by
one of its requests until the lease expires. A provider's code or a `state` is valid for one
attempt.

Risks: two processes decide on two versions of one record. The service therefore applies these
functions in a compare-and-set, and the process that loses decides again on the new record.

Everything may import this package; it imports errors and values only.
"""
