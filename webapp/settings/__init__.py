"""Settings: read once from the environment and `elicit.toml`, with every problem named.

`settings` has the whole, the other modules a part each; `key_file` makes and keeps the secret of a
local server, `key_usage` holds what a store was sealed under against the secrets that are set.

Promised: all problems at once, each naming its variable; a secret prints as `***`.
"""
