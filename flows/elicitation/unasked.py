"""Questions that were made in a call and that nobody was asked.

What could go wrong: a verb without its `await` does nothing, and the tool goes on as if the person
had paid. So a call knows what was made in it, and by its end each is asked or discarded. Each is
known by itself and not by what it says: of two equal ones, one may have been forgotten. What a
module makes while it is imported belongs to no call, also where a call imports it.
"""

import inspect

from flows.elicitation.traits import traits_of
from flows.errors import NotAsked

_PASSED_OVER = ("flows", "dataclasses")
_CAN_AWAIT = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Made:
    """One question that was made in a call: where, until it is asked or discarded."""

    __slots__ = ("_among", "in_def", "kind", "line", "path")

    def __init__(self, kind: str, *, path: str, line: int, in_def: bool, among: "Unasked") -> None:
        self.kind = kind
        self.in_def = in_def  # in a function that cannot await
        self.path = path
        self.line = line
        self._among = among

    @property
    def place(self) -> str:
        """As it is told to whoever reads it: the folders of a machine are nobody's business."""
        name = self.path.replace("\\", "/").rpartition("/")[2]
        return f"{name}:{self.line}"

    def settle(self) -> None:
        """It is asked, or it never will be, on purpose."""
        self._among.drop(self)


class Unasked:
    """What was made in one call, or in one inner call of it, and is still to be asked."""

    def __init__(self, outer: "Unasked | None" = None) -> None:
        self._outer = outer
        self._made: dict[Made, None] = {}  # in their order; a tool may be a thread of its own

    def add(self, kind: str) -> Made | None:
        """A question of this kind was made by whoever called the library just now."""
        place = place_of_call()
        if place is None:
            return None
        path, line, in_def = place
        made = Made(kind, path=path, line=line, in_def=in_def, among=self)
        self._made[made] = None
        return made

    def drop(self, made: Made) -> None:
        self._made.pop(made, None)

    def __bool__(self) -> bool:
        return bool(self._made)

    @property
    def stops_what_follows(self) -> list[Made]:
        """Those that nothing else may be asked or done before; those of the outer call too."""
        outer = self._outer.stops_what_follows if self._outer is not None else []
        own = [made for made in list(self._made) if traits_of(made.kind).stops_what_follows]
        return [*outer, *own]

    def take(self) -> list[Made]:
        """All of them, which are judged by this: nobody else hears of them."""
        made = list(self._made)
        self._made.clear()
        return made


def never_asked(made: list[Made]) -> NotAsked:
    places = dict.fromkeys(each.place for each in made)
    return NotAsked(*places, in_def=any(each.in_def for each in made))


def place_of_call() -> tuple[str, int, bool] | None:
    """Where the author's code called the library, and whether in a function that cannot await.

    None while a module is being imported.
    """
    frame = inspect.currentframe()
    place: tuple[str, int, bool] | None = None
    while frame is not None:
        room = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if room == "asyncio":  # what stands behind it does not belong to the call
            break
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            return None
        if place is None and room not in _PASSED_OVER:
            in_def = not frame.f_code.co_flags & _CAN_AWAIT
            place = (frame.f_code.co_filename, frame.f_lineno, in_def)
        frame = frame.f_back
    return place
