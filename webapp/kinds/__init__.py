"""The kinds of questions: who may answer each kind, and how the answer is processed.

`registry` creates each kind once. `oauth` and `payment` have their own packages, the other kinds a
module here. Most kinds are based on `page_kind` and answered on our own page: forms and
confirmations use it unchanged, and other kinds override parts of it. The properties of a kind are
in its traits (`flows.elicitation.traits`). In a `decision`, an approver decides in their inbox.
`approvals` stores remembered approvals, `rules` runs an author's validators in the process that has
them, and `quotas` limits the number of open questions.
"""
