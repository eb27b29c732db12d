"""`Waits`: how long each tool takes, learned from what it took."""

from collections import defaultdict

ENOUGH = 3  # waits, before anything is said of a tool


class Waits:
    """The means of what was seen, by tools."""

    def __init__(self) -> None:
        self._seen: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])  # how many waits, and their sum in seconds

    def note(self, tool: str, seconds: float) -> None:
        """Learn from a wait."""
        seen = self._seen[tool]
        seen[0] += 1
        seen[1] += seconds

    def expected(self, tool: str) -> float:
        """Return how many seconds a tool takes in the mean; 0: not known."""
        count, total = self._seen[tool]
        return total / count if count >= ENOUGH else 0.0
