"""A fake asker that records the questions it receives."""

from datetime import timedelta
from typing import Any

from flows import elicit
from flows.elicitation.once_work import OnceWork
from flows.elicitation.states import Completion, Json
from flows.elicitation.tool_call import CallingPerson
from flows.errors import ElicitError
from flows.question import Outcome, Question

URL = "https://example.com/go"


def question(message: str = "Please go there.", url: str = URL, **more: Any) -> Question[Any]:
    return elicit.url(message, url, **more)


class FixedAsker:
    """A fake asker that answers every question with a fixed outcome."""

    def __init__(self, outcome: Outcome[Any]) -> None:
        self.outcome = outcome
        self.asked: list[Question[Any]] = []

    async def ask(self, question: Question[Any]) -> Outcome[Any]:
        self.asked.append(question)
        return self.outcome

    async def ask_together(self, questions: Any, *, stops_at_no: bool) -> Any:
        return tuple([await self.ask(question) for question in questions])

    async def once(self, work: OnceWork) -> Json:
        return await work("idempotency-key")

    @property
    def resources(self) -> Any:
        raise AssertionError("nothing here reaches out")

    async def on_end(self, callback: str, payload: str, *, key: str) -> None:
        self.endings = [*getattr(self, "endings", ()), (callback, payload, key)]

    def caller(self) -> CallingPerson:
        return CallingPerson(id=None)

    async def forget(self, name: str) -> bool:
        return False

    async def notify(self, message: str) -> None:
        self.notices = [*getattr(self, "notices", ()), message]

    def can(self, mode: str) -> bool:
        return mode == "url"

    def token(self, elicitation_id: str, *, timeout: timedelta) -> str:
        return f"sealed {elicitation_id}"

    def read_token(self, text: str) -> str:
        return text.removeprefix("sealed ")

    def failed(self, error: ElicitError) -> None:
        self.error = error

    async def complete(self, elicitation_id: str, content: Json, **whose: str | None) -> Completion:
        return Completion.ACCEPTED

    async def complete_return(self, request: Any, content: Json) -> Completion:
        return Completion.LATE
