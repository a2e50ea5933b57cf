"""Secrets (kind `secret`): typed on our page, passed to the tool, and stored only if named.

Risks: a secret is stored longer than needed. A secret without a name is stored only in the
elicitation, whose content is erased on delivery or 10 minutes after the answer. A secret with a
name is stored for the owner and the server until it is deleted.
"""

from collections.abc import Collection, Sequence
from typing import Any, cast

from msgspec.structs import replace

from flows.elicitation.states import Elicitation, Json
from flows.errors import Failed
from flows.kinds.secret import Secret
from flows.schema.schema import Schema, check, with_secrets
from webapp.elicitations.question_kind import AskedBy
from webapp.kinds.page_kind import PageKind, terms_in
from webapp.records.values import KeptSecret, Value


class SecretPage(PageKind):
    """The kind `secret`: implements question_kind.QuestionKind for a Secret."""

    may_know = True

    async def known(self, request: Secret, by: AskedBy) -> Json | None:
        """Return the secret stored under the request's name, or None if it no longer matches."""
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

        return bool(await self._elicitations.write_afresh(wiped))

    async def _named(self, current: Elicitation, name: str, content: Json) -> KeptSecret:
        found = await self._stored(current.owner, current.asked.server, name)
        if found is not None:
            return replace(found, content=content, erase_at=None)
        id = self._id(current.owner, current.asked.server, name)
        return KeptSecret(id=id, owner=current.owner, content=content)

    async def _stored(self, owner: str, server: str, name: str) -> KeptSecret | None:
        id = self._id(owner, server, name)
        return await self._elicitations.read(KeptSecret, owner=owner, id=id)

    def _id(self, owner: str, server: str, name: str) -> str:
        return owner + self._elicitations.owners.pepper.tag("secret", server, name, size=18)
