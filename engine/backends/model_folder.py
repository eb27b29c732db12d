"""What a model's folder says of itself, read from one small file before anything heavy is imported."""

import json
from pathlib import Path

from engine.errors import EngineConfigurationError

HARMONY_MODEL_TYPE = "gpt_oss"  # in `config.json`: the one family of models that speaks Harmony


def check_folder(model: str) -> None:
    """Raise `EngineConfigurationError` where `model` is a folder without a gpt-oss model; a hub's name passes."""
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
    check_model_type(model, config.get("model_type") if isinstance(config, dict) else None)


def check_model_type(model: str, model_type: object) -> None:
    """Raise `EngineConfigurationError` for a model that is not gpt-oss."""
    if model_type != HARMONY_MODEL_TYPE:
        raise EngineConfigurationError(
            f"MODEL={model} is a {model_type} model; this server talks to {HARMONY_MODEL_TYPE} models only so far."
        )
