"""Tests of deploy/: each file is checked by a tool of its kind, or served by its program.

Risks: a file was right only when it was written. A name is no longer a setting, a timeout is
shorter than a call, a newer version refuses an option, or a log contains links. So no test uses a
copy. Each reads the file itself, and changes only what belongs to this machine: ports, folders and
the certificate.
"""
