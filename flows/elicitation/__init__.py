"""flows/elicitation."""
