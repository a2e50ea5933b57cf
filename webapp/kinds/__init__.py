"""webapp/kinds."""
