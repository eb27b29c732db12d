"""Completions, decisions and embeddings in the document."""

from collections.abc import Mapping

from responses_app.openapi.operations import BYTES, EVENTS, JSON, Operation

_WORKS = (404, 429)  # the model is not there, or a limit is reached

MODEL_OPERATIONS: Mapping[str, Mapping[str, Operation]] = {
    "/v1/completions": {
        "POST": Operation(
            id="createCompletion",
            summary="Complete raw prompts, at once or as a stream",
            tag="Completions",
            answers={JSON: "Completion", EVENTS: "CompletionServerSentEvent"},
            body="CreateCompletion",
            errors=_WORKS,
        ),
    },
    "/v1/decisions": {
        "POST": Operation(
            id="createDecision",
            summary="Answer questions about an input with probabilities",
            tag="Decisions",
            answers={JSON: "Decision"},
            body="CreateDecision",
            errors=_WORKS,
        ),
    },
    "/v1/embeddings": {
        "POST": Operation(
            id="createEmbedding",
            summary="Make embeddings of texts, or of tokens",
            tag="Embeddings",
            answers={JSON: "EmbeddingList", BYTES: ""},
            body="CreateEmbedding",
            errors=_WORKS,
        ),
    },
}
