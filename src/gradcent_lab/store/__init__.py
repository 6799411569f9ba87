"""Stage 3, store: finished runs as small text files, written atomically, one process per run."""

from gradcent_lab.store.records import (
    RunRecord,
    begin,
    discard,
    finish,
    folder,
    is_finished,
    load,
    load_run,
    unfinished,
)

__all__ = [
    "RunRecord",
    "begin",
    "discard",
    "finish",
    "folder",
    "is_finished",
    "load",
    "load_run",
    "unfinished",
]
