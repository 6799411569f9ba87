"""Errors that the user can fix: the command prints them as one line, without a traceback."""


class UserError(Exception):
    """Caused by user input; the message says what is wrong and what to do."""


class DataError(UserError):
    """A sample cannot be read; the message names the file."""


class Diverged(UserError):
    """The loss or the evaluation of a run is no longer a finite number; the run's result says so."""


def install_line(package: str) -> str:
    """Return the command that installs a package or one of our extras, which are not on the package index yet.

    >>> install_line("ray"), install_line("'gradcent[lab]'")
    ('pip install ray', "pip install -e '.[lab]' in a clone of gradcent")
    """
    name = package.strip("'")
    if name.startswith("gradcent["):
        return f"pip install -e '.{name.removeprefix('gradcent')}' in a clone of gradcent"
    return f"pip install {package}"
