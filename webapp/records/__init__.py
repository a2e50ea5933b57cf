"""webapp/records."""
