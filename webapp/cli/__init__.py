"""webapp/cli."""
