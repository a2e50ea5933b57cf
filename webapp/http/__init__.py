"""webapp/http."""
