"""An author's module for `fastmcp run`."""

from fastmcp import FastMCP

from tests.hosts.served import with_tools
from webapp import add_pages

mcp = FastMCP("shop")
add_pages(mcp)
with_tools(mcp)
