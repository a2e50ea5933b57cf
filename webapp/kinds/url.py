"""Visits (kind `url`): the person opens an address."""

from msgspec.structs import replace

from flows.elicitation.states import Asked, Elicitation, Json
from flows.kinds.url import Visit, VisitFlow
from flows.question import Link
from webapp.elicitations.question_kind import AskedBy
from webapp.records.values import Value


class Visits:
    """The kind `url`: implements question_kind.QuestionKind for a Visit."""

    holds_open = False
    may_know = False
    outlives_errors = False

    def __init__(self) -> None:
        self.flow = VisitFlow()

    def facts(self, request: Visit) -> Json:
        return request.facts()

    async def known(self, request: Visit, by: AskedBy) -> Json | None:
        return None

    async def asked(self, request: Visit, asked: Asked, *, link: Link, by: AskedBy) -> Asked:
        """Return `asked` with the address to open, if the author gave an address.

        If the author gave a function, it is called later, after the question is stored.
        """
        url = None if callable(request.url) else request.address(link)
        return replace(asked, url=url, origins=request.origins, waits=request.waits)

    async def answer(self, claimed: Elicitation) -> Json:
        return claimed.content

    async def used_up(self, delivered: Elicitation) -> list[Value]:
        return []

    def return_path(self, elicitation: Elicitation) -> str:
        return ""

    def label(self, elicitation: Elicitation) -> str:
        return ""
