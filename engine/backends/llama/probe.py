"""What a llama-server serves, found out before it is used."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine import orjson
from engine.backends.answers import Refusal, shown
from engine.backends.client import ServerClient
from engine.errors import EngineConfigurationError, EngineError, EngineUnavailable

MAX_TRIED = 8  # special tokens whose ids are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What a server turned out to be."""

    model: str  # as the server calls it
    max_model_len: int  # prompt and output together, in each slot
    slots: int  # generations that it runs at once
    tokens: int  # of its vocabulary


async def inspect(client: ServerClient, special: Mapping[str, int], *, is_harmony: bool) -> Service:
    """Ask the server what it serves. `special` are tokens that the model is known by, with their ids.

    Raises `EngineConfigurationError` where an operator has to change something, `EngineUnavailable` where it may pass.
    """
    props = await _asked(client, "/props")
    models = await _asked(client, "/v1/models")
    try:
        (card,) = models["data"]
        service = Service(
            model=str(card["id"]),
            max_model_len=int(props["default_generation_settings"]["n_ctx"]),
            slots=int(props["total_slots"]),
            tokens=int(card["meta"]["n_vocab"]),
        )
    except (LookupError, TypeError, ValueError) as error:
        raise EngineConfigurationError(
            f"{client.name} does not say which model it serves, as llama-server with -m or -hf does."
        ) from error
    await _compare(client, special, service, is_harmony=is_harmony)
    return service


async def _compare(client: ServerClient, special: Mapping[str, int], service: Service, *, is_harmony: bool) -> None:
    """Raise `EngineConfigurationError` where the server's tokens are not ours."""
    for name, token in list(special.items())[:MAX_TRIED]:
        body = orjson.dumps({"content": name, "add_special": False, "parse_special": True})
        try:
            tokens = orjson.loads(await client.post("/tokenize", body))["tokens"]
        except Refusal as refusal:
            raise EngineUnavailable(f"{client.name} answered {refusal}") from refusal
        except (LookupError, TypeError, ValueError) as error:
            raise EngineUnavailable(f"{client.name} answers /tokenize not like llama.cpp.") from error
        if tokens == [token]:
            continue
        if is_harmony:
            raise EngineConfigurationError(
                f"{client.name} serves {service.model}, which is no gpt-oss: set MODEL_FORMAT=chat-template, and "
                "TOKENIZER to the folder of its tokenizer."
            )
        raise EngineConfigurationError(
            f"{client.name} serves {service.model}, and TOKENIZER is of another model: {name} is the token {token} "
            "there alone."
        )


async def _asked(client: ServerClient, path: str) -> dict[str, Any]:
    status, content = await client.get(path)
    if status in (401, 403):
        raise EngineConfigurationError(
            f"{client.name} refuses our key with {status}: ENGINE_API_KEY is to be what it was given as --api-key."
        )
    error: EngineError = EngineUnavailable(f"{client.name} answers {status} to GET {path}: {shown(content)}")
    if status != 200:
        raise error
    try:
        said = orjson.loads(content)
    except ValueError:
        raise error from None
    if not isinstance(said, dict):
        raise error
    return said
