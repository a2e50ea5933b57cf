"""The client capability `elicitation` and its modes.

Risks: a client that declares `elicitation: {}` is treated as having no mode. That declaration is
older than the modes, so it counts as `form`. Source: ClientCapabilities of the 2025-06-18,
2025-11-25 and 2026-07-28 schemas.
"""

from collections.abc import Mapping
from typing import Final, cast

from flows.errors import InvalidQuestion

MODES: Final = ("form", "url")


def supports_elicitation(capabilities: object, mode: str | None = None) -> bool:
    """Return True if a client with these capabilities can be asked in this mode, or in any.

    `capabilities` is a mapping as in the protocol, a model of `mcp_types`, or None for a client
    that declares nothing. Raises InvalidQuestion for other objects, such as a tool's context, and
    for a mode that does not exist.
    """
    _must_be_capabilities(capabilities)
    if mode is not None:
        must_be_mode(mode)
    modes = modes_of(capabilities)
    return bool(modes) if mode is None else mode in modes


def modes_of(capabilities: object) -> frozenset[str]:
    """Return the modes in which a client with these capabilities can be asked."""
    declared = _object(capabilities, "elicitation")
    if declared is None:
        return frozenset()
    modes = [one for one in MODES if _object(declared, one) is not None]
    return frozenset(modes or ("form",))


def must_be_mode(mode: str) -> None:
    """Raise InvalidQuestion if `mode` is not an elicitation mode."""
    if mode not in MODES:
        raise InvalidQuestion(f"{mode!r} is not an elicitation mode; write form or url.")


def _must_be_capabilities(given: object) -> None:
    name = type(given).__name__
    if not isinstance(given, Mapping | None) and not hasattr(given, "elicitation"):
        raise InvalidQuestion(
            f"{name} is not a client's capabilities: pass the ones that the client declared, "
            "such as ctx.session.client_capabilities."
        )


def _object(capabilities: object, name: str) -> object:
    """Return the part with this name if it is an object, even an empty one, and else None."""
    if isinstance(capabilities, Mapping):
        part = cast("Mapping[str, object]", capabilities).get(name)
    else:
        part = getattr(capabilities, name, None)
    return None if isinstance(part, bool | int | float | str | list) else part
