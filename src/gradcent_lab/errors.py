"""Errors that the user can fix: the command prints them as one line, without a traceback."""


class UserError(Exception):
    """Caused by user input; the message says what is wrong and what to do."""


class DataError(UserError):
    """A sample cannot be read; the message names the file."""


class Diverged(UserError):
    """The loss or the evaluation of a run is no longer a finite number; the run's result says so."""
