"""The sandbox's pages and the headers that go with everything it answers."""

from collections.abc import Mapping, Sequence
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from litestar import MediaType, Response

from webapp.http.browser import page_headers
from webapp.http.reply import Reply

NO_STORE: Mapping[str, str] = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_FOLDER = Path(__file__).resolve().parent


class SandboxPages:
    """Renders the sandbox's templates; `form_targets` are origins where its forms may lead."""

    def __init__(self, *, form_targets: tuple[str, ...]) -> None:
        # Browsers hold every redirect after a form to form-action.
        self._headers = page_headers(form_targets=form_targets)

    def page(
        self,
        template: str,
        values: Mapping[str, Any],
        *,
        status: HTTPStatus = HTTPStatus.OK,
        sets: Sequence[str] = (),
    ) -> Response[Any]:
        return Reply(
            _environment().get_template(template).render(values),
            sets=sets,
            status_code=status,
            media_type=MediaType.HTML,
            headers=self._headers,
        )

    def trouble(
        self, title: str, detail: str, *, status: HTTPStatus = HTTPStatus.BAD_REQUEST
    ) -> Response[Any]:
        """What went wrong, in words for the person in front of it."""
        return self.page("error.html", {"title": title, "detail": detail}, status=status)


@cache
def _environment() -> Environment:
    """With each template compiled once."""
    return Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )


@cache
def assets() -> dict[str, tuple[bytes, str]]:
    """What the pages load, by name: the bytes and their media type."""
    types = {".css": "text/css", ".svg": "image/svg+xml"}
    return {
        path.name: (path.read_bytes(), types[path.suffix])
        for path in _FOLDER.iterdir()
        if path.suffix in types
    }
