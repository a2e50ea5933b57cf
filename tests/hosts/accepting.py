"""Start uvicorn as a tool author would, with a protocol that records who opened a connection."""

import sys
from functools import partial
from typing import Any

import uvicorn

from webapp import Accepted, read_settings

if __name__ == "__main__":
    app, fd = sys.argv[1:]
    protocol: Any = partial(Accepted, arrivals=read_settings().arrivals)
    uvicorn.run(app, http=protocol, fd=int(fd))
