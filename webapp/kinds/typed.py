"""What all kinds have in common that our own page answers: nothing leads elsewhere.

The answer is in the elicitation alone, as its schema asks for it, until that is wiped.
"""

from typing import Any

import msgspec
from msgspec.structs import replace

from flows.elicitation.states import Asked, Elicitation, Json
from flows.errors import Failed
from flows.question import Link
from webapp.elicitations.kind import AskedBy
from webapp.elicitations.service import Elicitations
from webapp.records.rows import Value


class PageKind:
    """A part of webapp.elicitations.kind.Kind."""

    flow = None
    holds_open = False
    may_know = False
    outlives_errors = False

    def __init__(self, *, elicitations: Elicitations) -> None:
        self._elicitations = elicitations

    def facts(self, request: Any) -> Json:
        facts: Json = request.facts()
        return facts

    async def asked(self, request: Any, asked: Asked, *, link: Link, by: AskedBy) -> Asked:
        return replace(asked, terms=msgspec.to_builtins(request.terms))

    async def answer(self, taken: Elicitation) -> Json:
        if taken.content is None:
            raise Failed("What was answered has been wiped meanwhile.", elicitation_id=taken.id)
        return taken.content

    async def used_up(self, delivered: Elicitation) -> list[Value]:
        return []

    def return_path(self, elicitation: Elicitation) -> str:
        return ""
