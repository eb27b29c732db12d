"""A model without anything heavy: as an operator describes it, and as its folder does."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.errors import EngineConfigurationError
from engine.formats.chat_template.vocabulary import Sight, Vocabulary, sight_of, vocabulary_of

HARMONY_MODEL_TYPE = "gpt_oss"  # in `config.json`: the one family of models that speaks Harmony


HARMONY, CHAT_TEMPLATE, AUTO = "harmony", "chat-template", "auto"
VLLMS = "vllm:"  # how the name of a parser of vLLM's begins in REASONING_PARSER and TOOL_PARSER
FORMATS = (HARMONY, CHAT_TEMPLATE, AUTO)  # MODEL_FORMAT


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily:
    """A model as an operator describes it."""

    format: str = HARMONY  # one of `FORMATS`
    model: str = ""  # what its engine loads
    tokenizer: str = ""  # the folder of its tokenizer, or a name of the hub; "": that of the model
    reasoning_parser: str = "auto"  # a name in `engine.models.REASONING`, or one of vLLM's behind `vllm:`
    tool_parser: str = "auto"  # the same of `engine.models.CALLS`
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


def check_folder(model: str, *, harmony: bool = True) -> None:
    """Raise `EngineConfigurationError` where `model` is a folder without a model; a hub's name passes.

    `harmony`: it is to be a gpt-oss model.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir():
        # A path is told from a hub's name by how it begins: `org/model` is a name, `./model` a folder.
        if model.startswith(("/", ".", "~")):
            raise EngineConfigurationError(f"MODEL={model} is not a folder on this machine.")
        return
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EngineConfigurationError(
            f"MODEL={model} is a folder without a model: its config.json is missing or no JSON."
        ) from error
    if harmony:
        check_model_type(model, config.get("model_type") if isinstance(config, dict) else None)


def speaks_harmony(model: str) -> bool:
    """Whether a model is a gpt-oss: as its folder says, or a name of the hub."""
    try:
        config = json.loads((Path(model).expanduser() / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "gpt-oss" in model.lower()
    return isinstance(config, dict) and config.get("model_type") == HARMONY_MODEL_TYPE


def check_model_type(model: str, model_type: object) -> None:
    """Raise `EngineConfigurationError` for a model that is not gpt-oss."""
    if model_type != HARMONY_MODEL_TYPE:
        raise EngineConfigurationError(
            f"MODEL={model} is a {model_type} model; with MODEL_FORMAT=harmony it must be {HARMONY_MODEL_TYPE}, "
            "and all others need MODEL_FORMAT=chat-template, or auto."
        )


# Files that may name the ends of a turn; each of them may be missing.
CONFIG = "config.json"
NAMES_ENDS = ("generation_config.json", CONFIG, "tokenizer_config.json")


def check_tokenizer(named: str) -> None:
    """Raise `EngineConfigurationError` for a folder that cannot be read, and for none; a hub's name passes."""
    if Path(named).expanduser().is_dir() or named.startswith(("/", ".", "~")):
        read_vocabulary(named)


def read_vocabulary(named: str) -> Vocabulary:
    """Read a folder, or a name of the hub: 0.3 s for 150,000 tokens. Raises `EngineConfigurationError`."""
    folder = _folder(named)
    try:
        return vocabulary_of(_read(folder / "tokenizer.json"), [_read(folder / name) for name in NAMES_ENDS])
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise EngineConfigurationError(
            f"TOKENIZER={named} is not the folder of a model's tokenizer, with a tokenizer.json and what names the end "
            f"of a turn: {type(error).__name__}: {error}."
        ) from error


def read_sight(named: str, vocabulary: Vocabulary, image_token: str) -> Sight | None:
    """Return how the model's template has a picture, None where it does not see; `named` as in `read_vocabulary`.

    Raises `EngineConfigurationError` where `image_token` is not `auto`, and cannot be.
    """
    try:
        return sight_of(_read(_folder(named) / CONFIG), vocabulary, image_token)
    except ValueError as error:
        raise EngineConfigurationError(f"IMAGE_TOKEN is wrong for {named}: {error}.") from error


def _folder(named: str) -> Path:
    folder = Path(named).expanduser()
    if not folder.is_dir() and not named.startswith(("/", ".", "~")):
        folder = _fetched(named)
    return folder


def _read(path: Path) -> dict[str, Any]:
    # `tokenizer.json` is needed, so its absence is an error.
    if path.name in NAMES_ENDS and not path.exists():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {}


def _fetched(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download  # type: ignore[import-not-found]  # vLLM brings it
    except ImportError:
        raise EngineConfigurationError(
            f"TOKENIZER={name} is not a folder. Copy the model's tokenizer.json, tokenizer_config.json and "
            "generation_config.json into one, and name it."
        ) from None
    try:
        # Only what is read here; the weights are gigabytes.
        return Path(snapshot_download(name, allow_patterns=["*.json"]))
    except Exception as error:
        raise EngineConfigurationError(f"The tokenizer {name} cannot be fetched: {type(error).__name__}.") from error
