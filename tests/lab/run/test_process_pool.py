"""Worker processes: each is bound to one of the GPUs that the parent may use."""

import pytest
import torch

from gradcent_lab.run import process_pool
from gradcent_lab.run.accelerator import Options


@pytest.mark.parametrize(
    ("inherited", "visible", "expected"),
    [
        (None, 2, ["0", "1", "0"]),
        ("4,5", 2, ["4", "5", "4"]),
        (" 6 , 7", 2, ["6", "7", "6"]),
        ("GPU-aa,GPU-bb,GPU-cc", 3, ["GPU-aa", "GPU-bb", "GPU-cc"]),
        ("3,99", 1, ["3", "3", "3"]),  # CUDA ignores what follows an invalid index
        ("", 0, [None, None, None]),
        (None, 0, [None, None, None]),
    ],
)
def test_a_worker_takes_one_of_the_inherited_gpus(monkeypatch, inherited, visible, expected):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if inherited is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", inherited)
    assert [process_pool.assigned_gpu(number, visible) for number in range(3)] == expected


class Closed:
    """A connection whose sender has no task."""

    def recv(self):
        return None


@pytest.mark.parametrize(("cpu", "expected"), [(False, "5"), (True, "4,5")])
def test_the_worker_sets_the_variable_unless_it_runs_on_the_cpu(monkeypatch, tmp_path, cpu, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    process_pool._serve(Closed(), tmp_path, Options(cpu=cpu), torch.get_num_threads(), 1)
    assert process_pool.os.environ["CUDA_VISIBLE_DEVICES"] == expected
