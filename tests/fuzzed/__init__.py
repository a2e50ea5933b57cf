"""The HTTP API as a program sends it that goes by its document alone, and by nothing else."""
