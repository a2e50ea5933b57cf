"""The made-up people of the sandbox, their pictures and their repositories."""

from dataclasses import dataclass
from html import escape
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """`number` is what programs know a person by, as GitHub's `id`; `login` is for people."""

    number: int
    login: str
    name: str
    colour: str

    @property
    def email(self) -> str:
        return f"{self.login}@sandbox.example"

    @property
    def picture(self) -> str:
        """A round picture with the first letters of the name, as SVG."""
        letters = "".join(word[0] for word in self.name.split()[:2])
        return (
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64">'
            f'<circle cx="32" cy="32" r="32" fill="{self.colour}"/>'
            '<text x="32" y="41" font-family="system-ui, sans-serif" font-size="25" '
            f'font-weight="600" fill="#fff" text-anchor="middle">{escape(letters)}</text></svg>'
        )

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
    Person(number=583231, login="octocat", name="Octo Cat", colour="#5a3fb0"),
    Person(number=480938, login="hubot", name="Hubot", colour="#a12a1c"),
)


def person_of(login: str | None) -> Person | None:
    return next((person for person in PEOPLE if person.login == login), None)
