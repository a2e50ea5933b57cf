"""Tests of deploy/: each file is checked by a tool of its kind, or served by its program.

Risks: a file was right only when it was written. Since then a setting was renamed, a timeout became
shorter than a call, a newer version refuses an option, or a log contains links. So no test uses a
copy of a file. Each test reads the file itself, and changes only what depends on this machine:
ports, folders and the certificate.
"""
