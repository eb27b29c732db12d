"""What is known of a model that decides how it is written to and read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.backends.model_folder import speaks_harmony

HARMONY, CHAT_TEMPLATE, AUTO = "harmony", "chat-template", "auto"
VLLMS = "vllm:"  # how the name of a parser of vLLM's begins in REASONING_PARSER and TOOL_PARSER
FORMATS = (HARMONY, CHAT_TEMPLATE, AUTO)  # MODEL_FORMAT


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily:
    """What an operator says of a model."""

    format: str = HARMONY  # one of `FORMATS`
    model: str = ""  # what its engine loads
    tokenizer: str = ""  # the folder of its tokenizer, or a name of the hub; "": that of the model
    reasoning_parser: str = "auto"  # a name in `formats.REASONING`, or one of vLLM's behind `vllm:`
    tool_parser: str = "auto"  # the same of `formats.CALLS`
    image_token: str = "auto"  # what its chat template writes for a picture; "none": it is shown none
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)  # what its chat template is told

    @property
    def vllm_parsers(self) -> tuple[str, str] | None:
        """The names of vLLM's own parsers of reasoning and of calls, where one is to be used."""
        parsers = (self.reasoning_parser, self.tool_parser)
        names = [each.removeprefix(VLLMS) if each.startswith(VLLMS) else "" for each in parsers]
        return (names[0], names[1]) if any(names) else None

    @property
    def is_harmony(self) -> bool:
        """Whether it is a gpt-oss. Reads a small file where that is to be found out."""
        return speaks_harmony(self.model) if self.format == AUTO else self.format == HARMONY
