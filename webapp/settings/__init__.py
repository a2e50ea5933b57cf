"""Settings: read once from the environment and `elicit.toml`, with every problem named.

Each setting is one row of a table: a name, a parser, a default and a sentence (`table`). What is
read, docs/settings.md, `elicit settings` and the refusal of unknown names come from the rows.
`settings` has the whole and composes it from the parts of the others; where a row is the field of a
dataclass, it is read into that field. `parsers` has what a setting can be.

`key_file` makes and keeps the secret of a local server, `key_usage` holds what a store was sealed
under against the secrets that are set; `config_file` reads `elicit.toml`.

Promised: all problems at once, each naming its variable; a secret prints as `***`.
"""
