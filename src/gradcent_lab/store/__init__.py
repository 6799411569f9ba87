"""Stage 3, store: finished runs as small text files, written atomically, one process per run."""
