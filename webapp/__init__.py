"""The half that acts: sockets, files, clocks, stores and pages around what `flows` thinks."""
