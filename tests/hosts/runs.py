"""A tool author's program that calls `mcp.run()`. Usage: `python -m tests.hosts.runs PORT`."""

import sys

from tests.hosts.shop import served
from webapp import add_pages

mcp = served()
add_pages(mcp)

if __name__ == "__main__":
    mcp.run(transport="streamable-http", port=int(sys.argv[1]))
