"""How the benches time a function."""

import time
from collections.abc import Callable


def cpu_seconds(function: Callable[[], object], runs: int = 3) -> float:
    """CPU time of this process, the least of several runs: a busy machine only adds to it."""
    times = []
    for _ in range(runs):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)
