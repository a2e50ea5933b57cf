"""The server of served_by_uvicorn.py, mounted in a FastAPI application with its own lifespan.

ELICIT_URL=http://127.0.0.1:8000/tools uvicorn mounted_in_fastapi:host
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from served_by_uvicorn import app


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    async with app.lifespan():  # and what your own application opens and closes
        yield


host = FastAPI(lifespan=lifespan)
host.mount("/tools", app)


@host.get("/about")
async def about() -> dict[str, str]:
    return {"about": "an application of your own"}
