"""Why some mutants survive: they change nothing that a user could notice."""

from __future__ import annotations

# (file name, change) -> why
EXPLAINED: dict[tuple[str, str], str] = {
    (
        "operator.py",
        "tensor.device.type == 'cpu' → tensor.device.type != 'cpu'",
    ): "both ways of computing a mean give the same number; this one decides whether a GPU synchronizes",
    ("layout.py", "True → False"): "dataclass(slots=True) saves memory; without frozen=True the tests fail",
    (
        "rules.py",
        "True → False",
    ): "ClassRule is private, and nothing assigns to it: frozen and slots show nowhere",
    (
        "statistics.py",
        "2 ** n // 2 → 2 ** n * 2",
    ): "every sign pattern is counted twice, and so is its mirror image: the same share",
    (
        "statistics.py",
        "40 → 41",
    ): "one more step of a bisection whose last step is already below 1e-12",
    (
        "statistics.py",
        "_power(pairs, middle / (1 - middle), alpha) >= power → _power(pairs, middle / (1 - middle), alpha) > power",
    ): "a bisection ends beside the root, whether or not a step hits it",
    (
        "statistics.py",
        "_power(MOST_PAIRS, ratio, alpha) < power → _power(MOST_PAIRS, ratio, alpha) <= power",
    ): "a float power that equals 0.8 exactly: its ratio is the limit itself",
    (
        "statistics.py",
        "_power(middle, ratio, alpha) >= power → _power(middle, ratio, alpha) > power",
    ): "a float power that equals 0.8 exactly: its ratio is the limit itself",
    (
        "record_types.py",
        "1e+300 → 1e+300",
    ): "1e300 + 1 is the same float",
    (
        "record_types.py",
        "0 → 1",
    ): "the default is asked for its type alone",
    (
        "records.py",
        "p.name in leftovers → p.name not in leftovers",
    ): "a finished run without leftovers is searched once more, and nothing is found",
    (
        "process_identity.py",
        "8 → 9",
    ): "the length of a word that is compared as a whole",
    (
        "run_lock.py",
        "10.0 → 11.0",
    ): "seconds between touches, far below the 90 after which a lock is stale",
    (
        "run_lock.py",
        "90.0 → 91.0",
    ): "seconds of patience",
    (
        "run_lock.py",
        "present - since > STALE → present - since >= STALE",
    ): "a moment that is exactly 90 s later",
    (
        "run_lock.py",
        "_now(path.parent) - touched / 1000000000.0 > STALE → _now(path.parent) - touched / 1000000000.0 >= STALE",
    ): "a moment that is exactly 90 s later",
    (
        "atomic_files.py",
        "3600.0 → 3601.0",
    ): "seconds of patience",
    (
        "atomic_files.py",
        "time.time() - leftover.stat().st_mtime > ABANDONED → time.time() - leftover.stat().st_mtime >= ABANDONED",
    ): "a moment that is exactly an hour later",
    (
        "atomic_files.py",
        "80 → 81",
    ): "the length at which a reason is cut",
}


def explanation(survivor: str) -> str:
    """Return why a survivor ("file:line: change") need not be killed; empty if it shows a gap of the tests."""
    file, _, rest = survivor.partition(":")
    return EXPLAINED.get((file, rest.partition(": ")[2]), "")
