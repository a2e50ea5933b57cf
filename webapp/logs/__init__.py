"""webapp/logs."""
