"""The complete path in Chromium: a waiting tool, its link, the author's service, the return."""
