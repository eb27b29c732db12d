"""How long to wait before an engine that did not start, or has died, is started again.

It holds for an engine that a worker starts or reaches, for vLLM's in a worker, and for the engine core that workers
share. A vLLM server of a pool is tried again more often: see `circuit`.
"""

RESTART_SECONDS = (1, 2, 5, 10, 30)  # before each attempt; the last one repeats


def restart_pause(failed: int) -> int:
    """Return the seconds before the next attempt, where so many in a row have failed."""
    return RESTART_SECONDS[min(failed, len(RESTART_SECONDS) - 1)]
