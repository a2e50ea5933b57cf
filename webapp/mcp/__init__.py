"""The Model Context Protocol's side: one middleware, three ways to show a link."""
