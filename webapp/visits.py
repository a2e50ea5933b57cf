"""Visits (the kind `url`): what is asked, and what trusted code says is done."""

from msgspec.structs import replace

from flows import elicitation as states
from flows.elicitation import Asked, Completion, Elicitation, Json
from flows.question import Link
from flows.visit import Visit, VisitFlow
from webapp.acceptance import accept
from webapp.elicitations import Elicitations
from webapp.kind import AskedBy
from webapp.rows import Value


class Visits:
    """Implements webapp.kind.Kind for requests of type Visit."""

    holds_open = False
    outlives_errors = False

    def __init__(self) -> None:
        self.flow = VisitFlow()

    def facts(self, request: Visit) -> Json:
        return request.facts()

    async def known(self, request: Visit, by: AskedBy) -> Json | None:
        return None

    async def asked(self, request: Visit, asked: Asked, *, link: Link, by: AskedBy) -> Asked:
        return replace(
            asked, url=request.address(link), origins=request.origins, waits=request.waits
        )

    async def answer(self, taken: Elicitation) -> Json:
        return taken.content

    async def used_up(self, delivered: Elicitation) -> list[Value]:
        return []

    def return_path(self, elicitation: Elicitation) -> str:
        return ""


async def complete_visit(elicitations: Elicitations, id: str, content: Json) -> Completion:
    """Settle as accepted what trusted code says is done; `id` may be one of the author's own.

    Goes on to its end when cancelled. Raises InvalidQuestion for content that is no JSON, or too
    large.
    """
    kept = states.checked_content(content)
    return await elicitations.whole(_complete(elicitations, id, kept))


async def _complete(elicitations: Elicitations, id: str, content: Json) -> Completion:
    current = await elicitations.get(id) or await elicitations.aliased(id)
    if current is None or current.kind != "url":
        return Completion.UNKNOWN
    return await accept(elicitations, current, content)
