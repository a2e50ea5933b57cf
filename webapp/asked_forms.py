"""Forms (the kinds `form` and `confirm`): answered in the client's own form, or on our page.

What could go wrong: an answer that was never asked for in this shape. Whoever brings it, it is
checked against the schema of the record before it settles anything.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec.structs import replace

from flows.elicitation import Asked, Elicitation, Json, Status
from flows.errors import Failed, NotPossible
from flows.form import Form, Terms
from flows.question import Link
from flows.schema import Schema, schema_of
from webapp.elicitations import Elicitations
from webapp.kind import AskedBy
from webapp.rows import Value

if TYPE_CHECKING:
    from collections.abc import Mapping


class AskedForms:
    """Implements webapp.kind.Kind for requests of type Form."""

    flow = None
    holds_open = False
    outlives_errors = False

    def __init__(self, *, elicitations: Elicitations) -> None:
        self._elicitations = elicitations

    def facts(self, request: Form) -> Json:
        return request.facts()

    async def known(self, request: Form, by: AskedBy) -> Json | None:
        return None

    async def asked(self, request: Form, asked: Asked, *, link: Link, by: AskedBy) -> Asked:
        return replace(asked, terms=msgspec.to_builtins(request.terms))

    async def answer(self, taken: Elicitation) -> Json:
        if taken.content is None:
            raise Failed("What was answered has been wiped meanwhile.", elicitation_id=taken.id)
        return taken.content

    async def used_up(self, delivered: Elicitation) -> list[Value]:
        return []

    def return_path(self, elicitation: Elicitation) -> str:
        return ""

    def terms(self, elicitation: Elicitation) -> Terms:
        return msgspec.convert(elicitation.asked.terms, Terms)

    def schema(self, elicitation: Elicitation) -> Schema[Any]:
        return schema_of(cast("Mapping[str, Json]", self.terms(elicitation).schema))

    async def save(self, elicitation: Elicitation, content: Json) -> None:
        """The person has answered; whoever calls this has checked it against the schema.

        Does nothing once the question is over.
        """
        if self._elicitations.clock() < elicitation.expires_at:
            with suppress(NotPossible):
                await self._elicitations.settle(elicitation.id, Status.ACCEPTED, content=content)
