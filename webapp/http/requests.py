"""Reading of cookies and queries from untrusted requests.

Risks: a request costs more to read than to send. The framework parses cookies in quadratic time and
caches the last thousand cookies, queries and paths. Cookies are therefore split here in one pass
and not decoded, because our own cookies need no decoding. Queries are parsed here too. An author's
own routes receive everything unchanged.
"""

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias
from urllib.parse import parse_qs

_FIELDS_AT_MOST = 1000

Fields: TypeAlias = dict[str, list[str]]


class ReadRequest(Protocol):
    """A request of any framework."""

    @property
    def scope(self) -> Mapping[str, Any]: ...


def cookies_of(request: ReadRequest) -> dict[str, str]:
    """Return the cookies as sent. If two cookies have the same name, return the last one."""
    found: dict[str, str] = {}
    for name, value in request.scope["headers"]:
        if name == b"cookie":
            for pair in value.decode("latin-1").split(";"):
                key, equals, word = pair.partition("=")
                if equals:
                    found[key.strip()] = word.strip()
    return found


def query_of(request: ReadRequest) -> Fields:
    """Return the fields of the query, or none if there are too many."""
    return parsed(request.scope["query_string"])


def parsed(text: bytes) -> Fields:
    """Return the fields of a form or a query, or none if there are too many."""
    try:
        return parse_qs(
            text.decode("utf-8", "replace"),
            keep_blank_values=True,
            max_num_fields=_FIELDS_AT_MOST,
        )
    except ValueError:
        return {}
