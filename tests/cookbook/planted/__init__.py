"""Three servers with a mistake that replay mode must find."""
