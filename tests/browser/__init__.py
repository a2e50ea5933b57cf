"""The whole path in Chromium: a tool that waits, its link, the author's service, the way back."""
