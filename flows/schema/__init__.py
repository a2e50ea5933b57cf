"""The flat subset of JSON Schema that a form can show, and what is read of it.

A schema is a type (a pydantic model, a dataclass, a TypedDict, `str`) or JSON Schema. `schema_of`
reads either into one Schema: its JSON for the client, its fields for a page, `typed` for the tool.
`json_schema` says with a path what is outside the subset; `fields` reads what a browser posted;
`sensitive` finds names that ask for a password; `rules` tells whether the type says more than its
JSON does, so that the author's own validators have to be asked as well.

Promised: what is stored, what is shown, what a client shows and what the tool receives are one
value; a number that JSON cannot hold exactly is refused, and never rounded.

What could go wrong: a page says "sent" and the tool then refuses what was sent. So what is not
known to be plain counts as a rule.
"""
