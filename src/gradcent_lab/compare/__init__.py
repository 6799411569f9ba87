"""A comparison of arms on a user's experiment: tuning, stopping, and runs of an existing script."""
