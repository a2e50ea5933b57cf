"""webapp/calls."""
