"""Stage 2, run: train the runs of a study, one by one, in worker processes or on Ray."""
