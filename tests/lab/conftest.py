"""The tests of the lab mirror its packages; pytest puts this folder, with their shared helpers, on sys.path."""
