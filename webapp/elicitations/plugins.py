"""Plugins: objects of an operator's own that are told what happens to questions.

What could go wrong: one that fails or takes its time. It is told after the question is durable and
before its link is out, so it holds up that one call; what it raises is logged and ends nothing.
"""

import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from flows.elicitation.states import Elicitation, Json

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A question that a person is about to be asked; `arguments` where a yes is asked for."""

    id: str
    kind: str
    server: str
    tool: str
    client: str | None
    message: str
    arguments: Json
    expires_at: datetime


class Plugins:
    """A plugin is any object; each method that it has by the name of a moment is called then.

    `started(question: Started)`: a question was asked anew, joined by nobody yet. May be async.
    """

    def __init__(self, plugins: Sequence[object] = ()) -> None:
        self._plugins = tuple(plugins)

    async def started(self, elicitation: Elicitation) -> None:
        tellable: list[Any] = [plugin for plugin in self._plugins if hasattr(plugin, "started")]
        if not tellable:
            return
        asked = elicitation.asked
        terms = asked.terms
        question = Started(
            id=elicitation.id,
            kind=elicitation.kind,
            server=asked.server,
            tool=asked.tool,
            client=asked.client,
            message=asked.message,
            arguments=terms.get("arguments") if isinstance(terms, Mapping) else None,
            expires_at=elicitation.expires_at,
        )
        for plugin in tellable:
            try:
                done: object = plugin.started(question)
                if inspect.isawaitable(done):
                    await done
            except Exception:  # noqa: BLE001 - somebody else's code, and no part of the call
                _log.exception("plugin.failed", extra={"plugin": type(plugin).__name__})
