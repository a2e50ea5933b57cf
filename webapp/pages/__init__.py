"""webapp/pages."""
