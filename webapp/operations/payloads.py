"""The body of a webhook as operators see it: readable, and without keys and tokens.

Risks: a provider sends a key with which a browser could confirm a payment (`client_secret`), or one
of our own tokens in an address, and the page shows it. So the values of fields with such names and
our tokens are masked, also in a body that is cut.
"""

import json
import re
from typing import Any, Final, cast

from webapp.logs.masking import MASK

_NAMES: Final = "secret|token|password|authorization|cookie|signature|api_?key"
_SECRET: Final = re.compile(_NAMES, re.IGNORECASE)
_FIELD: Final = re.compile(
    rf"""((?:{_NAMES})[\w.\[\]-]{{0,40}}"?\s{{0,9}}[:=]\s{{0,9}})"""
    r"""("(?:[^"\\]|\\.)*"?|[^&\s,}\]]+)""",
    re.IGNORECASE,
)
# Our own tokens, in the addresses to which a provider redirects; as the log masks them.
_OURS: Final = re.compile(r"(?<![\w-])[\w-]{40,}\.[\w-]{43}(?![\w-])")
_VALUE: Final = re.compile(r"(_secret_|\b(?:sk|rk|whsec)_)\w{8,}")


def shown_body(body: str) -> str:
    """Return the body with masked keys; JSON is indented."""
    try:
        text = json.dumps(_masked(json.loads(body)), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        text = _FIELD.sub(rf"\1{MASK}", body)
    return _OURS.sub(MASK, _VALUE.sub(rf"\1{MASK}", text))


def _masked(value: Any) -> Any:
    match value:
        case dict():
            fields = cast("dict[str, Any]", value).items()
            return {
                name: MASK if each is not None and _SECRET.search(name) else _masked(each)
                for name, each in fields
            }
        case list():
            return [_masked(each) for each in cast("list[object]", value)]
        case _:
            return value
