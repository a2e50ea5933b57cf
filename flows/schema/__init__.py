"""The flat subset of JSON Schema that a form can show.

A schema is a type (a pydantic model, a dataclass, a TypedDict, `str`) or JSON Schema. `schema_of`
converts either to a Schema: `json` for the client, `fields` for a page, `typed` for the tool.
`json_schema` refuses schemas outside the subset and names the JSON path. `fields` checks values.
`fields` also finds names that ask for a password. `has_rules` checks whether the type has
validators that its JSON Schema does not express: such validators run when the answer arrives.

Guarantees: the value that is stored, that a page or client shows, and that the tool receives are
the same. A number that JSON cannot represent exactly is refused, and never rounded.

Risks: a page says "sent" and the tool then refuses the answer. So `has_rules` treats every
type that it does not recognize as a type with validators.
"""
