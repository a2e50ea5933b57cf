"""Tests of deploy/: each file is checked by a tool of its kind, or served by its program.

Risk: a file becomes wrong after it was written. A setting is renamed, a timeout is now shorter than
a call, a newer version of a program refuses an option, or a log contains links. So no test uses a
copy of a file. Each test reads the file itself, and changes only what depends on this machine:
ports, folders and the certificate.
"""
