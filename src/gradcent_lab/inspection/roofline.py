"""What binds a step on a GPU nobody here has: memory, instruction issue, or too few bytes in flight. A prediction."""

from __future__ import annotations

from dataclasses import dataclass

MEMORY_LATENCY = 800e-9  # seconds under load, assumed for all GPUs


@dataclass(frozen=True)
class Gpu:
    """Published figures of a GPU."""

    name: str
    target: str
    bytes_per_second: float
    multiprocessors: int
    clock: float
    issue_lanes: int  # lanes of issued instructions per multiprocessor and cycle


GPUS = (
    Gpu("A100 80GB SXM", "sm_80", 2.039e12, 108, 1.41e9, 128),
    Gpu("H100 SXM", "sm_90", 3.35e12, 132, 1.755e9, 128),
    Gpu("MI300X", "gfx942", 5.3e12, 304, 2.1e9, 64),
)


@dataclass(frozen=True)
class Prediction:
    """Seconds per element for each resource; the largest binds."""

    memory: float
    issue: float
    latency: float

    @property
    def seconds(self) -> float:
        """The time of the resource that binds."""
        return max(self.memory, self.issue, self.latency)

    @property
    def bound_by(self) -> str:
        """The name of that resource."""
        names = {self.memory: "memory", self.issue: "issue", self.latency: "latency"}
        return names[self.seconds]


def predict(
    gpu: Gpu, bytes_per_element: float, instructions: float, resident_warps: int, load_bytes: float
) -> Prediction:
    """Predict the time of one element from the figures of a kernel.

    `load_bytes` is what one thread requests before it needs the first of it. By Little's law the bytes in
    flight divided by the latency bound the bandwidth.
    """
    lanes = 64 if gpu.target.startswith("gfx") else 32
    in_flight = resident_warps * lanes * load_bytes * gpu.multiprocessors
    return Prediction(
        memory=bytes_per_element / gpu.bytes_per_second,
        issue=instructions / (gpu.multiprocessors * gpu.issue_lanes * gpu.clock),
        latency=bytes_per_element * MEMORY_LATENCY / in_flight,
    )
