"""The made-up people of the sandbox, their pictures and their repositories."""

from dataclasses import dataclass
from typing import Any

from webapp.sandbox.drawing import png


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxPerson:
    """`number` is what programs know a person by, as GitHub's `id`; `login` is for people."""

    number: int
    login: str
    name: str
    colour: str
    drawing: tuple[str, ...]

    @property
    def email(self) -> str:
        return f"{self.login}@sandbox.example"

    @property
    def picture(self) -> bytes:
        """Their face, as PNG, with room for whoever shows it round."""
        return png(self.drawing, colours={".": self.colour, "#": "#ffffff", "o": "#1c1a24"})

    @property
    def repositories(self) -> list[dict[str, Any]]:
        """A few, in the shape of GitHub's list; the second is private."""
        return [
            {
                "id": self.number * 1000 + place,
                "name": name,
                "full_name": f"{self.login}/{name}",
                "private": is_private,
                "description": description,
                "owner": {"id": self.number, "login": self.login},
            }
            for place, (name, is_private, description) in enumerate(_REPOSITORIES)
        ]


_REPOSITORIES = (
    ("hello-sandbox", False, "The first thing that anybody writes here"),
    ("secret-plans", True, "Not so secret: they are made up"),
    ("sand-castle", False, "Gone with the tide"),
)

_CAT = (
    "............",
    "............",
    "..#......#..",
    "..##....##..",
    "..########..",
    "..#oo##oo#..",
    "..#oo##oo#..",
    "..####o###..",
    "..########..",
    "...######...",
    "............",
    "............",
)
_ROBOT = (
    "............",
    ".....##.....",
    ".....##.....",
    "..########..",
    "..#oooooo#..",
    "..#o#oo#o#..",
    "..#oooooo#..",
    "..########..",
    "...#o##o#...",
    "...######...",
    "............",
    "............",
)
PEOPLE = (
    SandboxPerson(number=583231, login="octocat", name="Octo Cat", colour="#5a3fb0", drawing=_CAT),
    SandboxPerson(number=480938, login="hubot", name="Hubot", colour="#a12a1c", drawing=_ROBOT),
)


def person_of(login: str | None) -> SandboxPerson | None:
    return next((person for person in PEOPLE if person.login == login), None)
