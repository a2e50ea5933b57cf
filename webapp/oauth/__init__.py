"""webapp/oauth."""
