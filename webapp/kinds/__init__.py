"""What each kind of question does here: who may answer, and what is done with the answer.

`registry` builds each kind once, in sight: `oauth` and `payment` have rooms of their own, the
others a module here. `approvals` are yeses that a person lets stand, `rules` asks an author's own
validators, in whichever process has them, `quotas` holds how much anybody may ask.
"""
