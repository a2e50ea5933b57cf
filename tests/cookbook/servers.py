"""The example servers, the APIs of the vendors that they call, and what a person does in each.

A cell is a library, a protocol revision and the elicitation modes that a client declares.
"""

import json
import sys
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final, TypeAlias

import httpx

from tests.support.cli import PROJECT
from webapp.testing import AskedPerson, ReceivedQuestion

EXAMPLES: Final = PROJECT / "examples"
LIBRARIES: Final = {"MCPServer": "from mcp.server.mcpserver import MCPServer"}
LIBRARIES["FastMCP"] = "from fastmcp import FastMCP as MCPServer"
REVISIONS: Final = ("2025-11-25", "2026-07-28")
DECLARES: Final = {"form and url": ("form", "url"), "form": ("form",), "nothing": ()}
Cell: TypeAlias = tuple[str, str, str]
CELLS: Final[list[Cell]] = [
    (library, revision, declares)
    for library in LIBRARIES
    for revision in REVISIONS
    for declares in DECLARES
]
# The planted mistakes: the tool, how many questions it asks, and the words that name the mistake.
PLANTED: Final = {
    "naive_loop": ("pay_all", 3, "changes paid (6 times)"),
    "released_hold": ("book", 1, "changes held"),
    "counter": ("count", 1, "changes statistics.calls (2 times)"),
}
Play: TypeAlias = Callable[[AskedPerson, Any], Awaitable[None]]


def cells_in_turn(name: str) -> list[Cell]:
    """Return each revision with each declaration, and a library that changes from cell to cell."""
    ways, libraries = dict.fromkeys(cell[1:] for cell in CELLS), list(LIBRARIES)
    first = zlib.crc32(name.encode())
    return [(libraries[(first + number) % 2], *way) for number, way in enumerate(ways)]


def load(place: str, library: str) -> Any:
    """Import an example again, with the import of its library replaced.

    `place` is the name of the example, or the path of another file in this repository.
    """
    path = PROJECT / place if place.endswith(".py") else EXAMPLES / f"{place}.py"
    example = path.stem
    source = path.read_text("utf-8").replace(LIBRARIES["MCPServer"], LIBRARIES[library])
    assert LIBRARIES[library] in source
    # `elicit.on_end` finds its callbacks by the name of their module.
    module = sys.modules[example] = ModuleType(example)
    module.__file__ = str(path)
    exec(compile(source, path, "exec"), module.__dict__)  # noqa: S102 - our own file
    return module


@dataclass
class Vendors(httpx.AsyncBaseTransport):
    """The APIs of GitHub, Google and Pipedrive, as far as the examples call them."""

    pulls: dict[int, str] = field(default_factory=lambda: {7: "Fix the gate", 8: "Add a lock"})
    people: dict[str, str] = field(default_factory=lambda: {"people/1": "Ada", "people/2": "Ben"})
    persons: list[str] = field(default_factory=list[str])
    calls: list[str] = field(default_factory=list[str])
    broken: str = ""  # a call that fails once

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url.copy_with(query=None)
        call = f"{request.method} {url}"
        self.calls.append(call)
        if call == self.broken:
            self.broken = ""
            return httpx.Response(503)
        body = json.loads(await request.aread() or b"{}")
        match url.host, request.method, url.path.split("/")[1:]:
            case "api.github.com", method, ["repos", _, _, "pulls", *rest]:
                assert request.headers["authorization"].startswith("Bearer ")
                return self._github(method, rest, body)
            case "people.googleapis.com", "GET", ["v1", "people", "me", "connections"]:
                names = [
                    {"resourceName": id, "names": [{"displayName": name}]}
                    for id, name in self.people.items()
                ]
                return httpx.Response(200, json={"connections": names})
            case "people.googleapis.com", "DELETE", ["v1", *rest]:
                del self.people["/".join(rest).removesuffix(":deleteContact")]
                return httpx.Response(200, json={})
            case "api.pipedrive.com", "GET", ["v1", "users", "me"]:
                is_valid = request.headers.get("x-api-token") == "pd-1"
                me = {"data": {"id": 5, "email": "ada@example.org"}}
                return httpx.Response(200, json=me) if is_valid else httpx.Response(401)
            case "api.pipedrive.com", "POST", ["v1", "persons"]:
                self.persons.append(body["name"])
                return httpx.Response(201, json={})
            case _:
                return httpx.Response(404)

    def _github(self, method: str, rest: list[str], body: Mapping[str, Any]) -> httpx.Response:
        match method, rest:
            case "GET", []:
                titles = [{"number": n, "title": title} for n, title in self.pulls.items()]
                return httpx.Response(200, json=titles)
            case "GET", [number]:
                title = self.pulls[int(number)]
                pull = {"number": int(number), "title": title, "head": {"sha": f"c0ffee{number}"}}
                return httpx.Response(200, json=pull)
            case "PUT", [number, "merge"]:
                assert body["sha"] == f"c0ffee{number}"
                del self.pulls[int(number)]
                return httpx.Response(200, json={"sha": f"beef{number}"})
            case _:
                return httpx.Response(404)


# The usual path through each example.


async def merge(person: AskedPerson, _: Any) -> None:
    person.connects()
    person.accepts()
    result = await person.call("merge_pull_request", repository="octocat/gate", number=7)
    assert result.text == "#7 is merged as beef7, by octocat."


async def buy_report(person: AskedPerson, example: Any) -> None:
    person.pays()
    result = await person.call("buy_report", city="Graz")
    assert result.text == "Graz had 298479 people on 2026-01-01. 9.00 EUR paid."
    assert example.made == ["Graz"]


async def book_seat(person: AskedPerson, example: Any) -> None:
    person.pays()
    result = await person.call("book_seat", seat=14)
    assert result.text == "Seat 14 is yours; 25.00 EUR was paid."
    assert example.sold == {14}


async def pay_invoices(person: AskedPerson, example: Any) -> None:
    for _ in example.INVOICES:
        person.accepts()
    result = await person.call("pay_invoices")
    assert result.text == "20 of 20 invoices are paid."
    assert sorted(example.transfers.values()) == sorted(example.INVOICES)


async def move_contacts(person: AskedPerson, _: Any) -> None:
    person.connects()
    person.types_key("pd-1")
    person.accepts()
    result = await person.call("move_contacts")
    assert result.text == "2 contacts have moved to ada@example.org."


async def deploy(person: AskedPerson, example: Any) -> None:
    person.approves(comment="Tested on staging")
    result = await person.call("deploy", environment="production", version="v1.1.0")
    assert '"v1.1.0"' in result.text
    assert "Tested on staging" in result.text
    assert example.log == ["production v1.1.0"]


async def report(
    person: AskedPerson, example: Any, asked: ReceivedQuestion, *, status: str = "verified"
) -> httpx.Response:
    """Post the vendor's report about a question to the author's route."""
    body = json.dumps({"case": asked.elicitation_id, "status": status}).encode()
    return await person.posts("/verifo", content=body, headers=example.signed(body))


async def open_depot(person: AskedPerson, example: Any) -> None:
    person.continues(lambda asked: report(person, example, asked))
    result = await person.call("open_depot")
    assert result.text == "The depot is open."
    assert len(example.depots) == 1


# The options of `elicit_person` that the test of an example needs.
OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "deployment": {
        "approvers": {"operations": {"subjects": ["frank", "flora"], "comment": "required"}}
    }
}
PLAYS: Final[Mapping[str, Play]] = {
    "pull_requests": merge,
    "paid_report": buy_report,
    "crm": move_contacts,
    "booking": book_seat,
    "batch": pay_invoices,
    "deployment": deploy,
    "kyc": open_depot,
}
