"""The settings of embeddings, which are a part of `conf.Settings`. MODELS says it of several models."""

from dataclasses import dataclass

from responses_app.setting_types import setting, text, urls


@dataclass(frozen=True, kw_only=True)
class EmbeddingSettings:
    """Every setting of them; a field's name in capitals is its environment variable."""

    embeddings_url: tuple[str, ...] = setting(
        (), urls,
        "servers with an embedding model (vLLM), separated by commas; their key is ENGINE_API_KEY (see "
        "Embeddings)",
        default_text="unset",
    )  # fmt: skip
    embeddings_model: str = setting(
        "", text,
        "the name of the embedding model at EMBEDDINGS_URL, there and for clients",
        default_text="the first model there, which clients call `embeddings`",
    )  # fmt: skip
