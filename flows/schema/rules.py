"""Detection of types with rules that their JSON Schema does not express, such as validators.

Risks: a validator is overlooked, so that a person reads "sent" and the tool then refuses the
answer. So a type that is not known to be plain is treated as one with rules.
"""

from collections.abc import Mapping
from typing import Any, cast

# Nodes of pydantic's core schema that a JSON Schema expresses and `fields` checks.
_PLAIN = frozenset(
    {
        *("definitions", "definition-ref", "model", "model-fields", "model-field"),
        *("typed-dict", "typed-dict-field", "dataclass", "dataclass-args", "dataclass-field"),
        *("default", "nullable", "str", "int", "float", "bool", "literal", "enum", "list"),
    }
)
_ASIDE = frozenset({"metadata", "serialization", "config", "cls", "default", "ref"})
# Rules that a form only approximates or lacks: bounds, and changes to a text before its check.
_TEXT = frozenset({"strip_whitespace", "to_lower", "to_upper"})
_CHANGED = tuple(f"str_{each}" for each in _TEXT)  # a model's configuration for all its texts
_ROUGH = {
    "str": _TEXT,
    "int": frozenset({"multiple_of"}),
    "float": frozenset({"gt", "lt", "multiple_of"}),
}
_CODE = ("custom_init", "post_init", "root_model", "missing", "default_factory")


def has_rules(core_schema: object) -> bool:
    """Return True if a TypeAdapter's core schema has rules that its JSON Schema lacks."""
    match core_schema:
        case Mapping():
            return _is_rule(cast("Mapping[str, Any]", core_schema))
        case list() | tuple():
            return any(map(has_rules, cast("list[object]", core_schema)))
        case _:
            return False


def _is_rule(node: Mapping[str, Any]) -> bool:
    kind = node.get("type")
    if isinstance(kind, str) and kind not in _PLAIN:
        return True
    if any(node.get(key) for key in _CODE):
        return True
    config = node.get("config")
    if isinstance(config, Mapping) and any(map(cast("Mapping[str, Any]", config).get, _CHANGED)):
        return True
    if not _ROUGH.get(kind or "", frozenset()).isdisjoint(node):
        return True
    return any(has_rules(value) for key, value in node.items() if key not in _ASIDE)
