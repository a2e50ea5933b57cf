"""The base class of all kinds that are answered on our own page.

The elicitation is the only place where the answer is stored, in the form that its schema describes.

Risks: an answer does not match the question. Callers therefore have to check the answer against the
schema in the stored question before they call `complete`.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from flows.elicitation.states import Asked, Completion, Elicitation, Json
from flows.elicitation.traits import Proof, traits_of
from flows.errors import Failed
from flows.kinds.secret import Secret
from flows.question import Link
from flows.schema.schema import Schema, check, schema_of, with_secrets
from webapp.elicitations.complete import complete_elicitation
from webapp.elicitations.question_kind import AskedBy, QuestionKind
from webapp.elicitations.service import Elicitations
from webapp.records.values import StoredSecret, Value


def is_before_tool(elicitation: Elicitation) -> bool:
    """Return True for a gate, whether its caller or another person decides."""
    return terms_in(elicitation).get("covers") is not None


def question_text(elicitation: Elicitation) -> str:
    """Return the question as people read it.

    If the author set no message, a gate asks with the tool's title: "Delete a repository?"
    """
    text, described = elicitation.request.message, elicitation.request.described
    if described is not None and is_before_tool(elicitation):
        text = text.removesuffix(f" ({described.name})")
        if described.title and text == f"Run {described.name}?":
            return described.title.rstrip("?!. ") + "?"
    return text


class PageKind(QuestionKind):
    """The base class of the kinds whose `terms` contain a schema."""

    def __init__(self, *, elicitations: Elicitations) -> None:
        self._elicitations = elicitations

    async def asked(self, request: Any, asked: Asked, *, link: Link, by: AskedBy) -> Asked:
        return replace(asked, terms=msgspec.to_builtins(request.terms))

    def schema(self, elicitation: Elicitation) -> Schema[Any]:
        return schema_of(cast("Mapping[str, Json]", terms_in(elicitation)["schema"]))

    async def complete(
        self, elicitation: Elicitation, answer: Json, proof: Proof, *, ticks: Collection[str] = ()
    ) -> Elicitation:
        """Complete the question with the person's answer, and return the ended question.

        Another answer may have ended the question first. `ticks` are the boxes that the person
        ticked on the page. Only `Kinds` calls this method, after the plugins have seen the answer.
        """

        async def also(accepted: Elicitation) -> Sequence[Value]:
            return await self.written_with(accepted, answer, ticks)

        id = elicitation.id
        done = await complete_elicitation(self._elicitations, id, answer, proof, also=also)
        ended = await self._elicitations.rows.as_remembered(id) or elicitation
        if done is Completion.ACCEPTED:
            self.log(ended, ticks)
        return ended

    async def written_with(
        self, accepted: Elicitation, answer: Json, ticks: Collection[str]
    ) -> Sequence[Value]:
        """Return further records to write in the same transaction as the answer."""
        return ()

    def log(self, accepted: Elicitation, ticks: Collection[str]) -> None:
        """Log the accepted answer after it is stored."""

    async def answer(self, claimed: Elicitation) -> Json:
        if claimed.content is None:
            raise Failed(
                "The answer was erased before the tool received it. Ask again.",
                elicitation_id=claimed.id,
            )
        return claimed.content


def terms_in(elicitation: Elicitation) -> Mapping[str, Json]:
    """Return the terms of a question that our own page answers; without terms, an empty mapping."""
    terms = elicitation.request.terms
    return terms if isinstance(terms, Mapping) else {}


def has_rules(elicitation: Elicitation) -> bool:
    """Return True if the author's own code checks the answer in addition to the schema."""
    return bool(terms_in(elicitation).get("has_rules"))


def has_check(elicitation: Elicitation) -> bool:
    """Return True if the question has a `check`."""
    return bool(terms_in(elicitation).get("check"))


def arguments_in(elicitation: Elicitation) -> Json:
    """Return the arguments that the person approves, as a form shows them."""
    fits = traits_of(elicitation.kind).fits_client_form
    return terms_in(elicitation).get("arguments") if fits else None


# Secrets (kind `secret`): typed on our page, passed to the tool, and stored only if named.
#
# Risks: a secret is stored longer than needed. A secret without a name is stored only in the
# elicitation, whose content is erased on delivery or 10 minutes after the answer. A secret with a
# name is stored for the owner and the server until it is deleted.


class SecretPage(PageKind):
    """The kind `secret`, of a Secret."""

    can_answer_without_asking = True

    async def known(self, request: Secret, by: AskedBy) -> Json | None:
        """Return the secret stored under the request's name if it matches the schema, else None."""
        if request.name is None:
            return None
        found = await self._stored(by.owner, by.server, request.name)
        if found is None or found.content is None or check(request.schema, found.content):
            return None
        try:
            request.schema.typed(found.content)
        except Failed:  # the author has changed the schema's type since the secret was stored
            return None
        return found.content

    def name(self, elicitation: Elicitation) -> str | None:
        """Return the name under which the secret is stored, or None."""
        return cast("str | None", terms_in(elicitation).get("name"))

    def schema(self, elicitation: Elicitation) -> Schema[Any]:
        return with_secrets(super().schema(elicitation))

    async def written_with(
        self, accepted: Elicitation, answer: Json, ticks: Collection[str]
    ) -> Sequence[Value]:
        name = self.name(accepted)
        return [] if name is None else [await self._named(accepted, name, answer)]

    async def forget(self, *, owner: str, server: str, name: str) -> bool:
        async def wiped() -> Sequence[Value]:
            found = await self._stored(owner, server, name)
            if found is None or found.content is None:
                return []
            return [replace(found, content=None, erase_at=self._elicitations.clock())]

        return bool(await self._elicitations.write_rebuilt(wiped))

    async def _named(self, current: Elicitation, name: str, content: Json) -> StoredSecret:
        found = await self._stored(current.owner, current.request.server, name)
        if found is not None:
            return replace(found, content=content, erase_at=None)
        id = self._id(current.owner, current.request.server, name)
        return StoredSecret(id=id, owner=current.owner, content=content)

    async def _stored(self, owner: str, server: str, name: str) -> StoredSecret | None:
        id = self._id(owner, server, name)
        return await self._elicitations.read(StoredSecret, owner=owner, id=id)

    def _id(self, owner: str, server: str, name: str) -> str:
        return owner + self._elicitations.owners.pepper.tag("secret", server, name, size=18)
