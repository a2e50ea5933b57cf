"""A web application that asks its own users, without MCP: an account, a payment, an API key.

`uvicorn connect_in_fastapi:app --port 8765`, then open http://127.0.0.1:8765/ in a browser.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from html import escape

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.middleware.sessions import SessionMiddleware

from flows import ElicitError, Money, elicit
from flows.providers import github
from webapp import ShownLink, asking, create_app, read_settings

SESSION_SECRET = os.environ.get("SESSION_SECRET", "only for trying it")
links: dict[str, str] = {}  # the link at which each user continues
results: dict[str, str] = {}  # the result for each user


def user_of(request: Request) -> str | None:
    """Return the signed-in user, whom your application already knows."""
    user: str | None = request.session.get("user")
    return user


elicit_app = create_app(
    read_settings(),
    name="Corner shop",
    who=user_of,
    sign_in_url="/login",
    sandbox=True,  # simulates GitHub and Stripe on this machine; remove it in production
)


async def make_report(user: str) -> None:
    """Await everything that is missing. After a crash, call it again: it continues where it was."""

    def show(link: ShownLink) -> None:
        links[user] = link.url

    try:
        async with asking(user, key="report", show=show):
            account = await elicit.oauth(github, scopes=["repo"])
            receipt = await elicit.payment(Money("9.00", "EUR"), "Premium report")
            key = await elicit.secret("The API key of your weather service, please.")
            results[user] = (
                f"A report for {account.label}: {receipt.price} was paid, and the key has "
                f"{len(key)} characters."
            )
    except ElicitError as error:  # declined, expired, or this process ends
        results[user] = str(error)
    finally:
        links.pop(user, None)


@asynccontextmanager
async def lifespan(host: FastAPI) -> AsyncGenerator[None]:
    """Run reports in a task group, because they outlive the requests that start them."""
    async with asyncio.TaskGroup() as host.state.reports, elicit_app.lifespan():
        yield


app = FastAPI(lifespan=lifespan)
app.add_middleware(SessionMiddleware, secret_key=SESSION_SECRET, same_site="lax")


@app.get("/login", response_class=HTMLResponse)
async def login() -> str:
    """Show a stub of your sign-in page."""
    return '<form method="post"><input name="user" value="ann"><button>Sign in</button></form>'


@app.post("/login")
async def sign_in(request: Request) -> RedirectResponse:
    """Store the user in a cookie that the browser also sends after a provider's redirect (Lax)."""
    async with request.form() as form:
        request.session["user"] = str(form["user"])
    return RedirectResponse("/", 303)


@app.get("/", response_class=HTMLResponse)
async def home(request: Request) -> str:
    """Show the state of the report."""
    user = user_of(request)
    if user is None:
        return '<a href="/login">Sign in</a>'
    if user in links:
        return f'<a href="{escape(links[user])}">Go on</a>, then <a href="/">come back here</a>.'
    report = "<form method='post' action='/report'><button>Make my report</button></form>"
    return f"<p>{escape(results.get(user, 'Hello.'))}</p>{report}"


@app.post("/report")
async def report(request: Request) -> RedirectResponse:
    """Start the report unless it already waits, and end the request."""
    user = user_of(request)
    if user is not None and user not in links:
        results.pop(user, None)
        request.app.state.reports.create_task(make_report(user))
    return RedirectResponse("/", 303)


app.mount("/", elicit_app)
