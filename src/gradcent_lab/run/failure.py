"""An error that user code raises in training: one line for the user, the traceback in a file."""

from __future__ import annotations

import traceback
from pathlib import Path

from gradcent_lab.errors import UserError
from gradcent_lab.experiment.import_spec import one_line
from gradcent_lab.store.atomic_files import make_folder


def training_failed(spec: str, error: Exception, out: Path) -> UserError:
    """Write the traceback to `out`/traceback.txt and return the one-line error."""
    path = make_folder(out) / "traceback.txt"
    path.write_text("".join(traceback.format_exception(error)))
    lines = [line for line in str(error).splitlines() if line.strip()]
    # the error of a worker process carries its traceback as text, with the error in the last line
    from_worker = "Traceback (most recent call last):" in str(error)
    message = lines[-1] if from_worker else one_line(error)
    return UserError(
        f"{spec} failed in training: {message}; finished runs are kept, the traceback is in {path}"
    )
