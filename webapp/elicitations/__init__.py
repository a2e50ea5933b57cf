"""webapp/elicitations."""
