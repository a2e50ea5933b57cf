"""The error for a name in an author's code that has no table in `elicit.toml`."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from flows.errors import NotConfigured

_PAGES = {
    "approvers": "how-to/approvals.md",
    "providers": "how-to/providers.md",
    "sellers": "how-to/providers.md",
}


def missing_table(
    kind: str,
    name: str,
    *,
    known: Iterable[str],
    config: str,
    also: Sequence[str] = (),
    has_none: bool = False,
) -> NotConfigured:
    """Return the error for an unknown name without a table in `elicit.toml`.

    `known` are the known names, and `config` is the path of the file as the reader may see it.
    `also` are settings that are needed together with the table.
    """
    table, near = f"[{kind}.{name}]", get_close_matches(name, [*known], n=1)
    how = f"Write {table} in {config}, as docs/{_PAGES[kind]} shows."
    if near:
        how, also = f"Perhaps {near[0]!r} is meant. If not: {how}", ()
    return NotConfigured(f"{table} in elicit.toml", *also, has_none=has_none, how=how)
