"""The kinds of questions: who may answer each kind, and how the answer is processed.

`registry` creates each kind once. `oauth` and `payment` have their own packages, the other kinds a
module here. Most kinds are a `page_kind`, answered on our own page: forms and confirmations need
nothing more, and a new kind overrides what differs. The properties of a kind are in its traits
(`flows.elicitation.traits`). `decision` is decided by an approver in their inbox. `approvals` are
remembered approvals, `rules` runs an author's validators in the process that has them, and `quotas`
limits the number of open questions.
"""
