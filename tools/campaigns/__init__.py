"""Campaigns: many attempts to make the project lose, alter or leak something, with counts of what happened.

`python -m campaigns` (in tools/, or `make campaign`) runs them and writes results/campaigns/*.json.
"""
