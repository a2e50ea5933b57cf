"""Forms (the kinds `form` and `confirm`): answered in the client's own form, or on our page.

What could go wrong: an answer that was never asked for in this shape. Whoever brings it, it is
checked against the schema of the record before it settles anything.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import msgspec

from flows.elicitation.states import Elicitation, Json, Status
from flows.errors import NotPossible
from flows.kinds.form import FORM_KINDS, Form, FormTerms
from flows.schema.schema import Schema, schema_of
from webapp.elicitations.kind import AskedBy
from webapp.kinds.typed import PageKind

if TYPE_CHECKING:
    from collections.abc import Mapping


class AskedForms(PageKind):
    """Implements webapp.elicitations.kind.Kind for requests of type Form."""

    async def known(self, request: Form, by: AskedBy) -> Json | None:
        return None

    def terms(self, elicitation: Elicitation) -> FormTerms:
        return terms_in(elicitation)

    def schema(self, elicitation: Elicitation) -> Schema[Any]:
        return schema_in(elicitation)

    async def save(self, elicitation: Elicitation, content: Json) -> None:
        """The person has answered; whoever calls this has checked it against the schema.

        Does nothing once the question is over.
        """
        if self._elicitations.clock() < elicitation.expires_at:
            with suppress(NotPossible):
                await self._elicitations.settle(elicitation.id, Status.ACCEPTED, content=content)


def terms_in(elicitation: Elicitation) -> FormTerms:
    return msgspec.convert(elicitation.asked.terms, FormTerms)


def arguments_in(elicitation: Elicitation) -> Json:
    """What a yes to it is about; None for every other kind of question."""
    is_form = elicitation.kind in FORM_KINDS
    return terms_in(elicitation).arguments if is_form else None


def schema_in(elicitation: Elicitation) -> Schema[Any]:
    return schema_of(cast("Mapping[str, Json]", terms_in(elicitation).schema))
