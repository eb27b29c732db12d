"""What a model's folder says of itself, read from one small file before anything heavy is imported."""

import json
from pathlib import Path

from engine.errors import EngineConfigurationError

HARMONY_MODEL_TYPE = "gpt_oss"  # in `config.json`: the one family of models that speaks Harmony


def check_folder(model: str, *, harmony: bool = True) -> None:
    """Raise `EngineConfigurationError` where `model` is a folder without a model; a hub's name passes.

    `harmony`: it is to be a gpt-oss model.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir():
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
