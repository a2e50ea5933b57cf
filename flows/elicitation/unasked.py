"""Questions that were created in a call but not asked.

Risks: a verb without `await` does nothing, and the tool goes on as if the person had paid. A call
therefore tracks the questions created in it, and by its end each must be asked or discarded.
Questions are tracked by identity: one of two equal questions may be the forgotten one. Questions
created while a module is imported belong to no call.
"""

import inspect

from flows.elicitation.traits import traits_of
from flows.errors import NotAsked

_LIBRARY_PACKAGES = ("flows", "dataclasses", "contextlib")
_CAN_AWAIT = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class UnaskedQuestion:
    """A question that was created in a call, and where, until it is asked or discarded."""

    __slots__ = ("_among", "in_def", "kind", "line", "path")

    def __init__(self, kind: str, *, path: str, line: int, in_def: bool, among: "Unasked") -> None:
        self.kind = kind
        self.in_def = in_def  # created in a function that cannot await
        self.path = path
        self.line = line
        self._among = among

    @property
    def place(self) -> str:
        return _place(self.path, self.line)

    def settle(self) -> None:
        """Mark the question as asked or discarded."""
        self._among.drop(self)


class Unasked:
    """The questions of one call, or of an inner call, that are still to be asked."""

    def __init__(self, outer: "Unasked | None" = None) -> None:
        self._outer = outer
        self._questions: dict[
            UnaskedQuestion, None
        ] = {}  # ordered; a tool may run in its own thread

    def add(self, kind: str) -> UnaskedQuestion | None:
        """Track a question of this kind that the caller of the library has just created."""
        location = location_of_call()
        if location is None:
            return None
        path, line, in_def = location
        question = UnaskedQuestion(kind, path=path, line=line, in_def=in_def, among=self)
        self._questions[question] = None
        return question

    def drop(self, question: UnaskedQuestion) -> None:
        self._questions.pop(question, None)

    def __bool__(self) -> bool:
        return bool(self._questions)

    @property
    def stops_what_follows(self) -> list[UnaskedQuestion]:
        """The questions that block everything else until asked, including the outer call's."""
        outer = self._outer.stops_what_follows if self._outer is not None else []
        own = [
            question
            for question in list(self._questions)
            if traits_of(question.kind).stops_what_follows
        ]
        return [*outer, *own]

    def pop_all(self) -> list[UnaskedQuestion]:
        """Return all questions and forget them, so that they are reported only once."""
        questions = list(self._questions)
        self._questions.clear()
        return questions


def never_asked(questions: list[UnaskedQuestion]) -> NotAsked:
    locations = dict.fromkeys(question.place for question in questions)
    return NotAsked(*locations, in_def=any(question.in_def for question in questions))


def place_of_call() -> str | None:
    """Return the file name and line of the author's call; None while a module is imported."""
    location = location_of_call()
    return None if location is None else _place(location[0], location[1])


def _place(path: str, line: int) -> str:
    """Return the file name and line. The folder is omitted, because others may read this."""
    name = path.replace("\\", "/").rpartition("/")[2]
    return f"{name}:{line}"


def location_of_call() -> tuple[str, int, bool] | None:
    """Return the file and line of the author's call, and True if its function cannot await.

    Return None while a module is being imported.
    """
    frame = inspect.currentframe()
    location: tuple[str, int, bool] | None = None
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package == "asyncio":  # frames further out do not belong to the call
            break
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            return None
        if location is None and package not in _LIBRARY_PACKAGES:
            in_def = not frame.f_code.co_flags & _CAN_AWAIT
            location = (frame.f_code.co_filename, frame.f_lineno, in_def)
        frame = frame.f_back
    return location
