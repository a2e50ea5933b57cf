"""A provider's declaration as data, and back: kept with what depends on it.

What could go wrong: a tool's code declares a provider, and only the process that ran the tool
knows it; another one could then neither finish what was begun there nor give back what was
granted. There is no secret in a declaration.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

import msgspec

from flows.elicitation.states import Json
from flows.oauth.provider import Provider

_NOT_KEPT = frozenset({"sandbox"})
_HINTS = {name: hint for name, hint in get_type_hints(Provider).items() if name not in _NOT_KEPT}


def as_data(provider: Provider) -> Json:
    """What of it is not left out."""
    data: dict[str, Json] = {}
    for each in fields(provider):
        value = getattr(provider, each.name)
        default = each.default if each.default is not MISSING else None
        if each.name not in _NOT_KEPT and value not in (default, (), {}):
            data[each.name] = msgspec.to_builtins(value)
    return data


def provider_in(data: Json) -> Provider:
    """Raises InvalidQuestion or msgspec.ValidationError for what declares none."""
    known: dict[str, Any] = {
        name: msgspec.convert(value, _HINTS[name])
        for name, value in (data.items() if isinstance(data, Mapping) else ())
        if name in _HINTS
    }
    return Provider(**known)
