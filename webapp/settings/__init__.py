"""Settings: read once from the environment and `elicit.toml`, with every problem named.

Each setting is one row of a table: a name, a parser, a default and a description (`table`). The
code that reads settings, docs/reference/settings.md, `elicit settings` and the refusal of unknown
names all use these rows. `settings` combines the parts of the other modules. A row that is a field
of a dataclass is read into that field. `parsers` has the types of values.

`key_file` creates and stores the secret of a local server. `key_usage` records which stores need
the secrets of a key file. `config_file` reads `elicit.toml`.

Guarantees: all problems are reported at once, each with its variable. A secret prints as `***`.
"""
