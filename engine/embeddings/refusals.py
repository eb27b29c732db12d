"""What an embedding model does not take, in words that a client may read."""

from engine.errors import EmbeddingRefused


def input_too_long(index: int | None, max_model_len: int, tokens: int | None = None) -> EmbeddingRefused:
    """One input has more tokens than the model takes; `index` says which, if that is known."""
    which = "An input" if index is None else f"Input {index}"
    has = "is too long" if tokens is None else f"has {tokens} tokens"
    return EmbeddingRefused(
        f"{which} {has}, and this model takes {max_model_len} tokens for each. Cut it into several inputs.",
        param="input",
    )


def too_many_dimensions(wanted: int, dimensions: int) -> EmbeddingRefused:
    """More dimensions are wanted than the model's vectors have."""
    return EmbeddingRefused(
        f"This model's embeddings have {dimensions} dimensions, and {wanted} were asked for. Ask for {dimensions} or "
        "fewer.",
        param="dimensions",
    )


def not_resizable(dimensions: int) -> EmbeddingRefused:
    """The model's vectors cannot be cut to as many dimensions as are wanted."""
    return EmbeddingRefused(
        f"This model's embeddings cannot be cut to that number of dimensions. Leave 'dimensions' out: they have "
        f"{dimensions}.",
        param="dimensions",
    )


def strange_token() -> EmbeddingRefused:
    """There is a token id that the model's vocabulary lacks."""
    return EmbeddingRefused("A token id of the input is not in this model's vocabulary.", param="input")
