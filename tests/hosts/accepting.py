"""How an author starts uvicorn so that it notes whose each connection is."""

import sys

import uvicorn

from webapp import Accepted

if __name__ == "__main__":
    app, fd = sys.argv[1:]
    uvicorn.run(app, http=Accepted, fd=int(fd))
