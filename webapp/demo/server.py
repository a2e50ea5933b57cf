"""The demo's tools, and the small service that they send a person to.

The service is an example of an author's own service.

Risks: a stranger's browser completes another person's visit. So the service's forms end in
`complete_elicitation(request)` or in the return address. Both require the link's token and the
browser that pressed Continue.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, urlencode, urlsplit

from mcp.server.mcpserver import MCPServer
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from flows import Completion, Link, Money, NotAllowed, complete_elicitation, elicit
from flows.elicitation.states import Json
from flows.origin import origin_of
from flows.providers import github
from webapp.http.browser import page_headers
from webapp.pages.renderer import Renderer, template_folder
from webapp.pages.views import BadRequest, Done, Late, Unknown, Used, View
from webapp.pages.views_openers import SomeoneElse

NAME = "elicit demo"
BODY_BYTES_AT_MOST = 16 * 1024
NAME_AT_MOST = 80
LINE_AT_MOST = 300
_FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestBook(View):
    """An open page of the guest book. `problem` says what to correct."""

    template: ClassVar[str] = "guest_book.html"
    action: str
    problem: str | None = None
    name: str = ""
    line: str = ""
    name_at_most: int = NAME_AT_MOST
    line_at_most: int = LINE_AT_MOST


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoTerms(View):
    """The page with the house rules to accept."""

    template: ClassVar[str] = "terms.html"
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoCounter(View):
    """The page where the person hands in a ticket."""

    template: ClassVar[str] = "counter.html"
    action: str
    ticket: str


def demo_server(public_url: str) -> MCPServer:
    """Return the demo's MCP server, whose pages are under `public_url`."""
    server = MCPServer(NAME, log_level="WARNING")
    add_tools(server)
    _add_tools(server, public_url)
    DemoService(public_url).add_to(server)
    return server


def _add_tools(server: MCPServer, public_url: str) -> None:
    origin = origin_of(public_url)

    @server.tool()
    async def sign_guest_book() -> str:
        """Let the person sign the guest book, and read what they wrote."""

        def page(link: Link) -> str:
            return f"{public_url}/demo/sign?{urlencode({'elicitation': link.return_token})}"

        signed = await elicit.url("Please sign our guest book.", page, origins=[origin])
        return f"{signed['name']} wrote: {signed['line']}"

    @server.tool()
    async def visit_terms() -> str:
        """Let the person read the house rules and accept them."""

        def page(link: Link) -> str:
            return f"{public_url}/demo/terms?{urlencode({'back': link.return_url})}"

        await elicit.url("Please read the rules of the house.", page, origins=[origin])
        return "The person has accepted the rules of the house."

    @server.tool()
    async def draw_ticket() -> str:
        """Draw a ticket once, and let the person hand it in at the counter."""
        ticket = await elicit.once("ticket", _draw, again=True)

        def page(link: Link) -> str:
            query = urlencode({"ticket": str(ticket), "elicitation": link.return_token})
            return f"{public_url}/demo/counter?{query}"

        await elicit.url(f"You drew ticket {ticket}. Please hand it in.", page, origins=[origin])
        return f"Ticket {ticket} was handed in."


class DemoService:
    """The pages that the tools lead to."""

    def __init__(self, public_url: str) -> None:
        self._public_url = public_url
        folders = [_FOLDER / "templates", template_folder()]
        self._pages = Renderer(folders=folders, root_path=urlsplit(public_url).path)
        self._style = (_FOLDER / "demo.css").read_bytes()

    def add_to(self, server: MCPServer) -> None:
        """Add the pages to the server as custom routes, next to the library's own /mcp."""
        server.custom_route("/demo/sign", methods=["GET"])(self.open_book)
        server.custom_route("/demo/sign", methods=["POST"])(self.sign)
        server.custom_route("/demo/terms", methods=["GET"])(self.show_terms)
        server.custom_route("/demo/terms", methods=["POST"])(self.accept_terms)
        server.custom_route("/demo/counter", methods=["GET"])(self.show_counter)
        server.custom_route("/demo/counter", methods=["POST"])(self.hand_in)
        server.custom_route("/demo/demo.css", methods=["GET"])(self.stylesheet)

    async def open_book(self, request: Request) -> Response:
        return self._page(GuestBook(server=NAME, action=_here(request)))

    async def sign(self, request: Request) -> Response:
        fields = await _fields(request)
        name, line = fields.get("name", "").strip(), fields.get("line", "").strip()
        if name and line and len(name) <= NAME_AT_MOST and len(line) <= LINE_AT_MOST:
            return await self._finish(request, {"name": name, "line": line})
        view = GuestBook(
            server=NAME,
            action=_here(request),
            problem=f"Please write your name (up to {NAME_AT_MOST} letters) and a line "
            f"(up to {LINE_AT_MOST}).",
            name=name[:NAME_AT_MOST],
            line=line[:LINE_AT_MOST],
        )
        return self._page(view, status=HTTPStatus.UNPROCESSABLE_ENTITY)

    async def show_terms(self, request: Request) -> Response:
        return self._page(DemoTerms(server=NAME, action=_here(request)))

    async def accept_terms(self, request: Request) -> Response:
        back = request.query_params.get("back", "")
        if not back.startswith(f"{self._public_url}/return?"):
            view = BadRequest(
                server=NAME, problem="The return address does not belong to this server."
            )
            return self._page(view, status=HTTPStatus.BAD_REQUEST)
        return RedirectResponse(back, status_code=HTTPStatus.SEE_OTHER, headers=page_headers())

    async def show_counter(self, request: Request) -> Response:
        ticket = request.query_params.get("ticket", "")
        return self._page(DemoCounter(server=NAME, action=_here(request), ticket=ticket))

    async def hand_in(self, request: Request) -> Response:
        return await self._finish(request, {})

    async def stylesheet(self, request: Request) -> Response:
        headers = {"cache-control": "max-age=3600", "x-content-type-options": "nosniff"}
        return Response(self._style, media_type="text/css", headers=headers)

    async def _finish(self, request: Request, content: Mapping[str, Json]) -> Response:
        try:
            completion = await complete_elicitation(request, content)
        except NotAllowed:
            view = SomeoneElse(server=NAME, other="browser")
            return self._page(view, status=HTTPStatus.FORBIDDEN)
        match completion:
            case Completion.ACCEPTED:
                return self._page(Done(server=NAME))
            case Completion.LATE:
                return self._page(Late(server=NAME))
            case Completion.ALREADY_SETTLED:
                return self._page(Used(server=NAME))
            case Completion.UNKNOWN:
                return self._page(Unknown(server=NAME), status=HTTPStatus.NOT_FOUND)

    def _page(self, view: View, *, status: int = HTTPStatus.OK) -> Response:
        content = self._pages.render(view)
        return HTMLResponse(content, status_code=status, headers=page_headers())


async def _draw(_: str) -> int:
    """Draw a number.

    A real lottery would use the key of `once` to recognize a repeated request.
    """
    return 100 + secrets.randbelow(900)


def _here(request: Request) -> str:
    return f"{request.url.path}?{request.url.query}"


async def _fields(request: Request) -> dict[str, str]:
    """Return the form's fields, or none if the body is longer than the form can be."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_AT_MOST:
            return {}
    fields = parse_qs(body.decode("utf-8", "replace"))
    return {name: values[0] for name, values in fields.items()}


# The demo's main tools: connect an account, pay, type a secret; at the sandbox by default.
def add_tools(server: MCPServer) -> None:
    @server.tool()
    async def list_my_repositories() -> str:
        """List the person's repositories on GitHub, by the account that they connect."""
        account = await elicit.oauth(github, scopes=["repo"])
        async with account.client() as api:
            repositories = (await api.get("/user/repos")).raise_for_status().json()
        names = ", ".join(each["full_name"] for each in repositories)
        return f"{account.label} has {len(repositories)} repositories: {names}."

    @server.tool()
    async def buy_report() -> str:
        """Sell the person a report, and write it once it is paid."""
        # `again`: people try the demo twice and expect to be asked twice. A shop leaves `again`
        # out.
        receipt = await elicit.payment(Money("9.00", "EUR"), "Premium report", again=True)
        return f"The {receipt.what.lower()} is yours; {receipt.price} was paid."

    @server.tool()
    async def use_key() -> str:
        """Let the person type a key that the client and the model never see, and use it once."""
        key = await elicit.secret("The key of your weather station, please.")
        return f"The station answers to a key of {len(key)} letters."
