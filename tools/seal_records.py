"""Add checksums to finished runs that an older version wrote, after checking that their files agree.

python tools/seal_records.py results/studies
"""

from __future__ import annotations

import sys
from pathlib import Path

from gradcent_lab.store import records
from gradcent_lab.store.atomic_files import read_json, read_lines, write_json
from gradcent_lab.store.integrity import check_facts, seal
from gradcent_lab.store.record_types import check_types


def seal_folder(root: Path) -> int:
    """Seal every finished run below `root` that has no checksums; return how many."""
    sealed = 0
    for path in sorted(root.rglob("result.json")):
        folder, result = path.parent, read_json(path)
        if "checksum" in result:
            continue
        config, curves = read_json(folder / "config.json"), read_lines(folder / "metrics.jsonl")
        check_types(folder, config, result, read_json(folder / "environment.json"), curves)
        check_facts(folder, config, result, curves)
        write_json(path, seal(folder, result, {}))
        records.load_run(folder)
        sealed += 1
    return sealed


if __name__ == "__main__":
    print(f"sealed {seal_folder(Path(sys.argv[1]))} runs")
