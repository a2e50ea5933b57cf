"""webapp/mcp/presenters."""
