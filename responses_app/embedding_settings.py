"""The settings of embeddings, which are a part of `conf.Settings`. MODELS says it of several models."""

from dataclasses import dataclass
from typing import Any

from responses_app.setting_types import json_object, server_urls, setting, text


@dataclass(frozen=True, kw_only=True)
class EmbeddingSettings:
    """Every setting of them; a field's name in capitals is its environment variable."""

    embeddings_url: tuple[str, ...] = setting(
        (), server_urls,
        "vLLM servers with an embedding model, separated by commas; their key is ENGINE_API_KEY (see Embeddings)",
        default_text="unset",
    )  # fmt: skip
    embeddings_model: str = setting(
        "", text,
        "the embedding model: its name at EMBEDDINGS_URL, or without that what vLLM loads in this process",
        default_text="the first model at EMBEDDINGS_URL, which clients call `embeddings`",
    )  # fmt: skip
    embeddings_options: dict[str, Any] = setting(
        {}, json_object,
        "options of vLLM, as JSON (fields of its `AsyncEngineArgs`), for an embedding model in this process",
        default_text="{}",
    )  # fmt: skip
