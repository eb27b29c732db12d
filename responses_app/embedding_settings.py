"""The settings of embeddings, which are a part of `conf.Settings`. MODELS says it of several models."""

from dataclasses import dataclass

from responses_app.setting_types import setting, text, urls


@dataclass(frozen=True, kw_only=True)
class EmbeddingSettings:
    """Every setting of them; a field's name in capitals is its environment variable."""

    embeddings_url: tuple[str, ...] = setting(
        (), urls, "vLLM servers with an embedding model, separated by commas; ENGINE_API_KEY is theirs too",
        default_text="unset",
    )  # fmt: skip
    embeddings_model: str = setting(
        "", text, "the name that model has there, and for clients",
        default_text="the first there, as `embeddings`",
    )  # fmt: skip
