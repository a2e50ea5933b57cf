"""The server of served_by_uvicorn.py, mounted in a Starlette application.

The application runs its lifespan.

ELICIT_URL=http://127.0.0.1:8000 uvicorn mounted_in_starlette:host
"""

from served_by_uvicorn import app
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route


async def about(_: Request) -> PlainTextResponse:
    return PlainTextResponse("A page of your own.")


host = Starlette(routes=[Route("/about", about), Mount("/", app)], lifespan=app.lifespan)
