"""The kinds of questions: who may answer each kind, and how the answer is processed.

`registry` creates each kind once, and defines the kind `url`. `oauth`, `api_key` and `payment` are
in `webapp.oauth` and `webapp.payments`. `form`, `confirm`, `secret` and `gate` are answered on our
own page and based on `PageKind` in `page_kind`. `form` and `confirm` use `PageKind` unchanged.
`secret` (in the same module) and `gate` override parts of it. In a `decision`, an approver decides
in their inbox. The properties of a kind are in its traits (`flows.elicitation.traits`). `gate`
also stores remembered approvals, `rules` runs an author's validators in the process that has them,
and `quotas` limits the number of open questions.
"""
