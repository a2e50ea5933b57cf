"""webapp/settings."""
