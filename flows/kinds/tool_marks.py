"""Marks on a tool: kept on its function, and on every function that this one wraps.

What could go wrong: a mark that nobody reads. It is written to all layers, so that the order of
decorators does not matter; one that hides what it wraps (no `functools.wraps`) hides the marks
below it too. Or a mark that opens a tool of another name, which shares a layer with this one: what
opens is written to one layer alone (`keep_mark_on`).
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

from flows.elicitation.unasked import place_of_call
from flows.errors import InvalidQuestion
from flows.question import asks_without_tool


def must_mark_a_tool(mark: str) -> None:
    """Raises InvalidQuestion in a block of no tool's; not for what an imported module has."""
    if asks_without_tool() and place_of_call() is not None:
        raise InvalidQuestion(
            f"{mark} marks a tool of an MCP server, and this block is none: await the questions "
            "themselves here."
        )


def layers_of(tool: object) -> Iterator[object]:
    """It, and what it wraps: functions, methods, partials, the libraries' own tools."""
    layer, seen = tool, set[int]()
    while layer is not None and id(layer) not in seen:
        seen.add(id(layer))
        yield layer
        layer = _below(layer)


def keep_mark(tool: object, name: str, mark: Callable[[object], object]) -> bool:
    """Write to each layer what `mark` makes of it; False if `tool` is nothing to be marked."""
    layers = list(layers_of(tool))
    # The tool's own decorator may have been first: what it serves may be any of these.
    if isinstance(tool, partial):  # it is what is served; what it calls may be served as well
        layers = layers[:1]
    marked = [(layer, mark(layer)) for layer in layers]
    kept = [_write(layer, name, value) for layer, value in marked]
    return any(kept) and any(map(callable, layers))


def keep_mark_on(layer: object, name: str, mark: object) -> bool:
    """Write it to this layer alone; False if it is nothing to be marked."""
    return callable(layer) and _write(layer, name, mark)


def own_layer(tool: object) -> object:
    """Where a mark stands that is this tool's alone: itself, or what a holder of it holds."""
    if isinstance(tool, staticmethod):
        return cast("staticmethod[..., object]", tool).__func__
    function: object = getattr(tool, "fn", None)  # of a library's own tool
    return function if callable(function) else tool


def _write(layer: object, name: str, value: object) -> bool:
    try:
        setattr(layer, name, value)
    except (AttributeError, TypeError, ValueError):  # a bound method, a model of the library's
        return False
    return True


def _below(layer: object) -> object:
    if isinstance(layer, partial):
        return cast("partial[object]", layer).func
    for name in ("__wrapped__", "__func__", "fn"):
        inner: object = getattr(layer, name, None)
        if callable(inner):
            # The library serves the `__call__` of an object that is called like a function.
            is_call = name == "__func__" and getattr(inner, "__name__", "") == "__call__"
            return getattr(layer, "__self__", None) if is_call else inner
    return None
