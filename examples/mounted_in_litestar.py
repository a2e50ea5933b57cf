"""The server of served_by_uvicorn.py, mounted under a path of a Litestar application.

ELICIT_URL=http://127.0.0.1:8000/tools uvicorn mounted_in_litestar:host
"""

from litestar import Litestar, asgi, get
from served_by_uvicorn import app


@get("/about")
async def about() -> str:
    return "A page of your own."


mounted = asgi("/tools", is_mount=True, copy_scope=True)(app)
host = Litestar([about, mounted], lifespan=[app.lifespan])
