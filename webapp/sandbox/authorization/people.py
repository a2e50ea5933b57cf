"""The made-up people of the sandbox, their pictures and their repositories."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PICTURES = Path(__file__).resolve().parent.parent / "people"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxPerson:
    """`number` is what programs know a person by, as GitHub's `id`; `login` is for people."""

    number: int
    login: str
    name: str

    @property
    def email(self) -> str:
        return f"{self.login}@sandbox.example"

    @property
    def picture(self) -> bytes:
        """Their face, as PNG, with room for whoever shows it round."""
        return (_PICTURES / f"{self.login}.png").read_bytes()

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

PEOPLE = (
    SandboxPerson(number=583231, login="octocat", name="Octo Cat"),
    SandboxPerson(number=480938, login="hubot", name="Hubot"),
)


def person_of(login: str | None) -> SandboxPerson | None:
    return next((person for person in PEOPLE if person.login == login), None)
