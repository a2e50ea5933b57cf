"""The work of `once`: how it is called, and how its result becomes JSON and is read back.

Risks: the work is done, and only then does the server notice that the result cannot be stored. Or
the first call gets a result of another type than later calls, which get the stored result. The
annotation of the work is therefore checked before the work runs, and every call, the first one too,
gets the stored JSON converted to the annotated type. A result of another type is stored too, so
that the work is not done again.
"""

import dataclasses
import inspect
import json
import typing
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from datetime import date, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, cast
from uuid import UUID

from pydantic import (
    BaseModel,
    PydanticSchemaGenerationError,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import to_jsonable_python

from flows.elicitation.misuse import must_run_when_called
from flows.elicitation.states import Json
from flows.errors import InvalidQuestion, ResultNotStored

_ASYNC = (Awaitable, Coroutine)
# Results of these classes become plain JSON if the work has no annotation.
_PLAIN = (BaseModel, Decimal, UUID, date, time, timedelta)


class OnceWork:
    """The work that an author passed to `once(name, work)`.

    `work` is a function or an unstarted coroutine. A function may return an awaitable. The
    function receives the idempotency key if it has a parameter for the key. `returns` is the type
    of the result. Without `returns`, the function's annotation is used. Without an annotation, the
    result is plain JSON. `key` distinguishes works of one name, and `again` is True if a repeated
    call does the work again. `again` is None if the work is not the tool's own: such work is
    identified by its name alone.

    Raises:
        InvalidQuestion: `work` cannot be called, or its result could not be stored.
    """

    def __init__(
        self,
        name: str,
        work: object,
        returns: Any = None,
        *,
        key: str | int | None = None,
        again: bool | None = False,
    ) -> None:
        self.name: str = name
        self.key: str | int | None = key
        self.again: bool | None = again
        self._work = work
        if inspect.iscoroutine(work):
            self._takes_key = False
        elif callable(work):
            must_run_when_called(work, f"once({name!r}): work")
            self._takes_key = _takes_key(name, work)
            returns = _annotation(work) if returns is None else returns
        else:
            raise InvalidQuestion(
                f"once({name!r}): work must be a function, not {type(work).__name__}. Pass the "
                "function itself, without calling it."
            )
        self._returns = returns
        self._adapter = _adapter(name, returns)

    async def __call__(self, key: str) -> Json:
        """Do the work and return its result as JSON. A plain function runs on the event loop."""
        work: Any = self._work
        if inspect.iscoroutine(work):
            given = await work
        else:
            given = work(key) if self._takes_key else work()
            if inspect.isawaitable(given):
                given = await given
        return _as_json(given, self._adapter)

    def typed(self, stored: Json) -> Any:
        """Convert the stored result to the annotated type.

        Raises:
            ResultNotStored: The stored result has another type.
        """
        if self._adapter is None:
            return stored
        try:
            return self._adapter.validate_json(json.dumps(stored))
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False, include_context=False)[0]
            why = ": ".join([*(str(part) for part in found["loc"]), found["msg"]])
        except Exception as error:  # noqa: BLE001 - the type's own code
            why = type(error).__name__
        raise ResultNotStored(
            f"once({self.name!r}) is done and its result is stored, but the result is not "
            f"{_shown(self._returns)}, the type that work should return ({why}). Correct the type. "
            "The same call then gets the stored result, and the work is not done again."
        )

    def close(self) -> None:
        """Close a coroutine that was not started, because its result was already stored."""
        if inspect.iscoroutine(self._work):
            self._work.close()


def _as_json(given: Any, adapter: TypeAdapter[Any] | None) -> Json:
    """Return the result as JSON, or unchanged if it cannot be JSON. The asker then refuses it."""
    if adapter is not None:
        with suppress(Exception):  # the annotation is wrong, or the value's own code raises
            return cast("Json", adapter.dump_python(given, mode="json", warnings="error"))
    if isinstance(given, _PLAIN) or dataclasses.is_dataclass(given):
        with suppress(Exception):
            return cast("Json", to_jsonable_python(given))
    return cast("Json", given)


def _takes_key(name: str, work: Callable[..., Any]) -> bool:
    """Return True if `work` has a parameter for the idempotency key.

    A parameter with a default is for the key only if it is named `key`, or if the default is None:
    authors bind a loop's variable as `lambda item=item: ...`.
    """
    try:
        parameters = inspect.signature(work).parameters.values()
    except (TypeError, ValueError):  # a function written in C
        return True
    positional = [one for one in parameters if one.kind in _POSITIONAL]
    others = (*positional[1:], *(one for one in parameters if one.kind is one.KEYWORD_ONLY))
    if any(one.default is one.empty for one in others):
        raise InvalidQuestion(
            f"once({name!r}): work needs more than one argument. Write a function whose only "
            "parameter, if any, is the idempotency key, such as `lambda key: charge(order, key)`."
        )
    if not positional:
        return any(one.kind is one.VAR_POSITIONAL for one in parameters)
    first = positional[0]
    return first.default in (first.empty, None) or first.name in ("key", "idempotency_key")


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _annotation(work: object) -> Any:
    """Return the annotated type of the result, or None if there is none."""
    while isinstance(work, partial):
        work = work.func
    if not inspect.isroutine(work):
        work = type(work).__call__
    try:
        returns = typing.get_type_hints(work, include_extras=True).get("return")
    except (NameError, TypeError):  # a name that exists for type checkers only
        return None
    if typing.get_origin(returns) in _ASYNC and not inspect.iscoroutinefunction(work):
        returns = typing.get_args(returns)[-1]
    return None if isinstance(returns, typing.TypeVar) or returns is Any else returns


def _adapter(name: str, returns: Any) -> TypeAdapter[Any] | None:
    if returns is None or returns in _ASYNC:
        return None
    try:
        return TypeAdapter(returns)
    except PydanticSchemaGenerationError:
        raise InvalidQuestion(
            f"once({name!r}): work returns {_shown(returns)}, which cannot be stored. Return JSON, "
            "a pydantic model, a dataclass, or a type that pydantic can convert to JSON and back."
        ) from None
    except (PydanticUserError, NameError, RecursionError):  # the annotation cannot be resolved
        return None


def _shown(returns: Any) -> str:
    return str(returns if typing.get_args(returns) else getattr(returns, "__name__", returns))
