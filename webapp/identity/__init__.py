"""webapp/identity."""
