"""deploy/ as it stands: each file is read by a tool of its kind, or served by it.

What could go wrong: a file that was right when it was written. A name that is no setting any more,
a time that is shorter than what it has to hold, an option that a newer version refuses, a log that
has begun to hold links. So nothing here is a copy: each test takes the very file, and changes in it
only what is this machine's own, its ports, folders and certificate.
"""
