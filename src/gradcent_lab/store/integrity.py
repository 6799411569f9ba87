"""Whether a stored run is what was written: checksums of its files, and facts that must agree with each other.

`result.json` is written last and seals the run: it holds the SHA-256 of every other file in the folder, and a
checksum of itself. A change of any byte of any of them is an error when the run is loaded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradcent_lab.experiment.run_config import digest
from gradcent_lab.store.atomic_files import Damaged, digest_bytes, json_text, read_bytes

ADVICE = "delete its folder and run again"
_UNSEALED = ("result.json", "checkpoint.pt", "failed.json")  # what the seal does not cover


def seal(folder: Path, result: Mapping[str, Any], contents: Mapping[str, bytes]) -> dict[str, Any]:
    """Return `result` with the checksums of all files of the run; `contents` are those known to be right."""
    files = {name: digest_bytes(content) for name, content in contents.items()}
    for path in sorted(folder.iterdir()):
        covered = path.is_file() and not path.name.startswith((".", "lock.")) and path.name not in _UNSEALED
        if covered and path.name not in files:
            files[path.name] = digest_bytes(read_bytes(path))
    sealed = {**{key: value for key, value in result.items() if key != "checksum"}, "files": files}
    return {**sealed, "checksum": _checksum(sealed)}


def check_seal(folder: Path, result: Any, text: bytes) -> None:
    """Raise `Damaged` unless `result.json` and all files it names are byte for byte what was written."""
    path = folder / "result.json"
    if not isinstance(result, dict):
        raise Damaged(f"{path} is damaged (not an object): {ADVICE}")
    files, checksum = result.get("files"), result.get("checksum")
    if not isinstance(files, dict) or not isinstance(checksum, str):
        raise Damaged(
            f"{path} lacks its checksums: {ADVICE}; if an older version of gradcent wrote it, "
            "seal it with tools/seal_records.py"
        )
    sealed = {key: value for key, value in result.items() if key != "checksum"}
    if checksum != _checksum(sealed) or text != json_text(result).encode():
        raise Damaged(f"{path} is damaged (its checksum does not match): {ADVICE}")
    for name in ("config.json", "environment.json", "metrics.jsonl"):
        if name not in files:
            raise Damaged(f"{path} lacks the checksum of {name}: {ADVICE}")
    for name, expected in files.items():
        if Path(name).name != name:
            raise Damaged(f"{path} names a file outside its folder: {ADVICE}")
        if digest_bytes(read_bytes(folder / name)) != expected:
            raise Damaged(f"{folder / name} is damaged (its checksum does not match): {ADVICE}")


def check_facts(
    folder: Path, config: dict[str, Any], result: dict[str, Any], curves: list[dict[str, Any]]
) -> None:
    """Raise `Damaged` unless configuration, curves and result agree with each other and with the folder.

    Their fields have the types that `check_types` asks for.
    """
    if digest(config) != folder.name:
        raise Damaged(
            f"{folder / 'config.json'} does not belong to this folder (its hash is {digest(config)}): {ADVICE}"
        )
    if config["study"] != folder.parent.name:
        raise Damaged(f"{folder / 'config.json'} names another study than its folder: {ADVICE}")
    best_epoch = result["best_epoch"]
    if best_epoch == 0:  # a measurement, whose rows are not epochs
        return
    epochs = config["settings"].get("epochs", len(curves))
    if len(curves) != epochs:
        raise Damaged(f"{folder / 'metrics.jsonl'} has {len(curves)} epochs instead of {epochs}: {ADVICE}")
    if not 1 <= best_epoch <= epochs:
        raise Damaged(
            f"{folder / 'result.json'} is damaged (best_epoch is {best_epoch} of {epochs}): {ADVICE}"
        )
    for number, line in enumerate(curves, start=1):
        if line["epoch"] != number:
            raise Damaged(f"{folder / 'metrics.jsonl'} is damaged (line {number}): {ADVICE}")
    for name, line in (("best", curves[best_epoch - 1]), ("last", curves[-1])):
        if not _same(result[name], line["eval_metric"]):
            raise Damaged(
                f"{folder / 'result.json'} is damaged ({name} is {result[name]}, metrics.jsonl has "
                f"{line['eval_metric']}): {ADVICE}"
            )


def _same(one: Any, two: Any) -> bool:
    return bool(one == two or (one != one and two != two))  # nan is nan


def _checksum(document: Any) -> str:
    return hashlib.sha256(json_text(document).encode()).hexdigest()
