"""What all kinds have in common that our own page answers: nothing leads elsewhere.

The answer is in the elicitation alone, as its schema asks for it, until that is wiped. What could
go wrong: an answer that was never asked for in this shape; whoever brings it has checked it against
the schema of the record.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from flows.elicitation.proof import Proof
from flows.elicitation.states import Asked, Completion, Elicitation, Json
from flows.elicitation.traits import traits_of
from flows.errors import Failed
from flows.question import Link
from flows.schema.schema import Schema, schema_of
from webapp.elicitations.complete import complete_elicitation
from webapp.elicitations.question_kind import AskedBy
from webapp.elicitations.service import Elicitations
from webapp.records.values import Value


class PageKind:
    """Implements question_kind.QuestionKind for requests with `terms` that have a schema."""

    flow = None
    holds_open = False
    may_know = False
    outlives_errors = False

    def __init__(self, *, elicitations: Elicitations) -> None:
        self._elicitations = elicitations

    def facts(self, request: Any) -> Json:
        facts: Json = request.facts()
        return facts

    async def known(self, request: Any, by: AskedBy) -> Json | None:
        return None

    async def asked(self, request: Any, asked: Asked, *, link: Link, by: AskedBy) -> Asked:
        return replace(asked, terms=msgspec.to_builtins(request.terms))

    def schema(self, elicitation: Elicitation) -> Schema[Any]:
        return schema_of(cast("Mapping[str, Json]", terms_in(elicitation)["schema"]))

    async def complete(
        self, elicitation: Elicitation, answer: Json, proof: Proof, *, ticks: Collection[str] = ()
    ) -> Elicitation:
        """The person has answered; `ticks` are the boxes of the page beside it.

        Returns what ended the question, which may be something else that was first. For
        `Kinds.complete` alone, which has plugins hear the answer before.
        """

        async def also(accepted: Elicitation) -> Sequence[Value]:
            return await self.written_with(accepted, answer, ticks)

        id = elicitation.id
        done = await complete_elicitation(self._elicitations, id, answer, proof, also=also)
        ended = await self._elicitations.as_remembered(id) or elicitation
        if done is Completion.ACCEPTED:
            self.log(ended, ticks)
        return ended

    async def written_with(
        self, accepted: Elicitation, answer: Json, ticks: Collection[str]
    ) -> Sequence[Value]:
        """What else is written with the answer."""
        return ()

    def log(self, accepted: Elicitation, ticks: Collection[str]) -> None:
        """Once it is written."""

    async def answer(self, taken: Elicitation) -> Json:
        if taken.content is None:
            raise Failed("What was answered has been wiped meanwhile.", elicitation_id=taken.id)
        return taken.content

    async def used_up(self, delivered: Elicitation) -> list[Value]:
        return []

    def return_path(self, elicitation: Elicitation) -> str:
        return ""

    def label(self, elicitation: Elicitation) -> str:
        return ""


def terms_in(elicitation: Elicitation) -> Mapping[str, Json]:
    """What a question that our own page answers asks for, in the words of its kind."""
    return cast("Mapping[str, Json]", elicitation.asked.terms)


def has_rules(elicitation: Elicitation) -> bool:
    """Whether an author's own validators have a say, beyond the schema."""
    return bool(terms_in(elicitation).get("has_rules"))


def arguments_in(elicitation: Elicitation) -> Json:
    """What a yes to it is about, as a form shows it."""
    fits = traits_of(elicitation.kind).fits_client_form
    return terms_in(elicitation).get("arguments") if fits else None
