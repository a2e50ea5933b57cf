"""`elicit settings`: each setting with its default, whether it is set, and what it is for.

What could go wrong: a secret on a screen that is shared. So no value is printed, of none of them.
"""

import argparse
import os

from webapp.printing import tell
from webapp.settings.settings import TABLE


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "List every setting with its default, whether it is set, and what it is for. No value is "
        "shown."
    )
    parser.set_defaults(run=_run)


def _run(_: argparse.Namespace) -> None:
    named = {row.name for row in TABLE}
    given = sorted(name for name, value in os.environ.items() if value.strip())
    for row in TABLE:
        is_set = [n for n in given if row.name == n or (n not in named and row.match(n))]
        state = f"set ({', '.join(is_set)})" if is_set and row.is_of_providers else "set"
        words = f"  {row.says}\n  default: {row.shown_default}\n".replace("`", "")
        tell(f"{row.name}  {state if is_set else 'not set'}\n{words}")
