"""Tools that await people, through a real client over real HTTP."""
