"""The made-up people of the sandbox and their repositories."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxPerson:
    """A made-up person. Programs know them by `number` (GitHub's `id`), people by `login`."""

    number: int
    login: str
    name: str

    @property
    def email(self) -> str:
        return f"{self.login}@sandbox.example"

    @property
    def repositories(self) -> list[dict[str, Any]]:
        """A few repositories in the format of GitHub's list. The second is private."""
        return [
            {
                "id": self.number * 1000 + index,
                "name": name,
                "full_name": f"{self.login}/{name}",
                "private": is_private,
                "description": description,
                "owner": {"id": self.number, "login": self.login},
            }
            for index, (name, is_private, description) in enumerate(_REPOSITORIES)
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
