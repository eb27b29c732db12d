"""The settings of embeddings, which are a part of `conf.Settings`. MODELS says it of several models."""

from dataclasses import dataclass
from typing import Any

from responses_app.setting_types import json_object, server_urls, setting, text


@dataclass(frozen=True, kw_only=True)
class EmbeddingSettings:
    """Every setting of them; a field's name in capitals is its environment variable."""

    embeddings_url: tuple[str, ...] = setting(
        (), server_urls, "vLLM servers with an embedding model, separated by commas; ENGINE_API_KEY is theirs too",
        default_text="unset",
    )  # fmt: skip
    embeddings_model: str = setting(
        "", text, "the name that model has there; without EMBEDDINGS_URL what vLLM loads in this process",
        default_text="the first there, as `embeddings`",
    )  # fmt: skip
    embeddings_options: dict[str, Any] = setting(
        {}, json_object, "JSON with fields of vLLM's `AsyncEngineArgs`, for an embedding model in this process",
        default_text="{}",
    )  # fmt: skip
