"""The settings of embeddings, which are a part of `conf.Settings`. MODELS says it of several models."""

from dataclasses import dataclass
from typing import Any

from responses_app.protocol.setting import RoomSettings, json_object, setting, text
from responses_app.settings.types import server_urls


@dataclass(frozen=True, kw_only=True)
class EmbeddingSettings(RoomSettings):
    """Every setting of them; a field's name in capitals is its environment variable."""

    embeddings_url: tuple[str, ...] = setting(
        (), server_urls,
        "servers with an embedding model (vLLM), separated by commas; their key is ENGINE_API_KEY (see "
        "Embeddings)",
        default_text="unset",
    )  # fmt: skip
    embeddings_model: str = setting(
        "", text,
        "the name of the embedding model at EMBEDDINGS_URL, there and for clients; without EMBEDDINGS_URL what vLLM "
        "loads in this process",
        default_text="the first model there, which clients call `embeddings`",
    )  # fmt: skip
    embeddings_options: dict[str, Any] = setting(
        {}, json_object, "JSON with fields of vLLM's `AsyncEngineArgs`, for an embedding model in this process",
        default_text="{}",
    )  # fmt: skip
