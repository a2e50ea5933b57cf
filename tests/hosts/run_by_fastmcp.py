"""An author's module for `fastmcp run`."""

from fastmcp import FastMCP

from tests.hosts.shop import served
from webapp import add_pages

mcp = served(FastMCP("shop"))
add_pages(mcp)
