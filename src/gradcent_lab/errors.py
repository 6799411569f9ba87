"""The one kind of error that is the user's to mend."""


class UserError(Exception):
    """Something the user can mend; printed as one line, without a traceback."""
