"""What answers said that they have used, to be compared with what is kept."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any


class Said:
    """What answers said that they have used, by what made them, and whether in a batch."""

    def __init__(self) -> None:
        self.sums: dict[tuple[str, bool], list[int]] = defaultdict(lambda: [0, 0, 0, 0])

    def add(self, answer: Mapping[str, Any], source: str = "responses", *, batch: bool = False) -> None:
        """Add an answer: its usage, in the words of whichever API."""
        usage: Mapping[str, Any] = answer["usage"] or {}
        details = usage.get("input_tokens_details") or usage.get("prompt_tokens_details") or {}
        beside = usage.get("cache_read_input_tokens") or 0  # Anthropic's input tokens leave out those
        tokens = (
            usage.get("input_tokens", usage.get("prompt_tokens", 0)) + beside,
            details.get("cached_tokens", 0) + beside,
            usage.get("output_tokens", usage.get("completion_tokens", 0)),
        )
        sums = self.sums[source, batch]
        sums[:] = [each + more for each, more in zip(sums, (1, *tokens), strict=True)]
