"""How long a run takes: wall seconds and processor seconds, from reading its data to its result."""

from __future__ import annotations

import time


class RunClock:
    """Measures this process; a run that continues from a checkpoint adds what it had taken by then.

    Work that a kill destroys is not counted: the sum is what an uninterrupted run takes, besides further starts.
    Processor seconds are those of all threads of the process, without its child processes.
    """

    def __init__(self) -> None:
        self._wall, self._processor = time.monotonic(), time.process_time()

    def add(self, wall_seconds: float, processor_seconds: float) -> None:
        """Add what the run took before this process."""
        self._wall -= wall_seconds
        self._processor -= processor_seconds

    def read(self) -> tuple[float, float]:
        """Return the wall seconds and the processor seconds of the run so far."""
        return time.monotonic() - self._wall, time.process_time() - self._processor

    def result(self) -> dict[str, float]:
        """Return the fields of the run's result."""
        wall, processor = self.read()
        return {"wall_seconds": round(wall, 3), "processor_seconds": round(processor, 3)}
