"""What each kind of question does here: who may answer, and what is done with the answer.

`registry` builds each kind once, in sight: `oauth` and `payment` have rooms of their own, the
others a module here. Most are a `page_kind`, whose answer our own page takes: a form and a
confirmation are nothing more, and a new one overrides what differs. What is true of all questions
of one kind stands in its traits (`flows.elicitation.traits`). `decision` is what somebody else than
whoever is asked for decides, and their inbox; `approvals` are yeses that a person lets stand,
`rules` asks an author's own validators, in whichever process has them, `quotas` holds how much
anybody may ask.
"""
