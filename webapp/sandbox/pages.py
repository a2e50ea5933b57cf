"""The sandbox's pages, and the headers of all its responses.

Risks: another site's page presses a button in a person's name. So each form has a CSRF field, which
is valid only for this browser and this subject.
"""

import secrets
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from litestar import MediaType, Response

from webapp.http.browser import Browser, cookies_of, page_headers
from webapp.http.parts import AnyRequest, Reply
from webapp.sandbox.checkout.sales import shown

NO_STORE: Mapping[str, str] = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_CSRF_KEY_BYTES = 32
_FOLDER = Path(__file__).resolve().parent


class SandboxPages:
    """Renders the sandbox's templates.

    `form_targets` are the origins that its forms can lead to.
    """

    def __init__(self, *, url: str, form_targets: tuple[str, ...]) -> None:
        # Browsers apply form-action to every redirect after a form.
        self._headers = page_headers(form_targets=form_targets)
        csrf_key = secrets.token_bytes(_CSRF_KEY_BYTES)
        self._browser = Browser(public_url=url, csrf_keys=lambda: [csrf_key])

    def page(
        self, template: str, values: Mapping[str, Any], *, status: HTTPStatus = HTTPStatus.OK
    ) -> Reply:
        return Reply(
            _environment().get_template(template).render(values),
            status_code=status,
            media_type=MediaType.HTML,
            headers=self._headers,
        )

    def form(
        self, template: str, values: Mapping[str, Any], *, request: AnyRequest, subject: str
    ) -> Response[Any]:
        """Return a page with forms about the subject, bound to this browser."""
        known = self._browser.cookie_of(cookies_of(request))
        cookie = known or self._browser.fresh()
        page = self.page(template, {**values, "csrf": self._browser.csrf(cookie, subject=subject)})
        page.sets = self._browser.set_cookies(cookie) if known is None else ()
        return page

    def is_valid_csrf(self, csrf: str | None, *, request: AnyRequest, subject: str) -> bool:
        """Return True if a form came from that page in this browser."""
        return self._browser.is_csrf(csrf or "", cookies_of(request), subject=subject)

    def trouble(
        self, title: str, detail: str, *, status: HTTPStatus = HTTPStatus.BAD_REQUEST
    ) -> Response[Any]:
        """Return an error page for the person."""
        return self.page("error.html", {"title": title, "detail": detail}, status=status)


@cache
def _environment() -> Environment:
    """Return the shared environment, which compiles each template once."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters["shown"] = shown
    return environment


@cache
def assets() -> dict[str, tuple[bytes, str]]:
    """Return the assets of the pages by path: their bytes and media types."""
    types = {".css": "text/css", ".svg": "image/svg+xml"}
    return {
        f"/{path.name}": (path.read_bytes(), types[path.suffix])
        for path in _FOLDER.iterdir()
        if path.suffix in types
    }
