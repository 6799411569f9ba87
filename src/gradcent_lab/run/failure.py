"""An error that user code raises in training: one line for the user, the traceback in a file."""

from __future__ import annotations

import traceback
from pathlib import Path

from gradcent_lab.errors import UserError
from gradcent_lab.experiment.import_spec import one_line
from gradcent_lab.store.atomic_files import make_folder, write_text


def training_failed(spec: str, error: Exception, out: Path) -> UserError:
    """Write the traceback to `out`/traceback.txt and return the one-line error."""
    path = make_folder(out) / "traceback.txt"
    write_text(path, "".join(traceback.format_exception(error)))
    return UserError(
        f"{spec} failed in training: {one_line(error)}; finished runs are kept, the traceback is in {path}"
    )
