"""Containers of the code interpreter, as requests name them and as clients see them."""

from typing import Literal

from pydantic import Field

from responses_app.protocol.errors import JsonObject, invalid_request, unsupported_parameter
from responses_app.protocol.items import ClientModel
from responses_app.protocol.validation import validate

MemoryLimit = Literal["1g", "4g", "16g", "64g"]
MAX_FILES = 50  # that a container begins with


class NetworkPolicy(ClientModel):
    """What a container may reach: nothing, here."""

    type: Literal["disabled", "allowlist"]


class _Auto(ClientModel):
    """A container that the server chooses: the one of the chain, or a new one."""

    type: Literal["auto"]
    file_ids: list[str] | None = Field(default=None, max_length=MAX_FILES)
    memory_limit: MemoryLimit | None = None
    network_policy: NetworkPolicy | None = None


class _CodeInterpreter(ClientModel):
    """The tool, as a request declares it. OpenAI requires `container`; here its absence means `auto`."""

    container: str | _Auto = _Auto(type="auto")


def echoed_interpreter(tool: JsonObject, at: str) -> JsonObject:
    """Validate the code interpreter as a tool of a request; return it as it is echoed. Raises `ApiError`."""
    interpreter = validate(_CodeInterpreter, tool, at=at)
    container = interpreter.container
    if isinstance(container, str):
        if not container.startswith("cntr_"):
            raise invalid_request(
                f"Invalid value for '{at}.container': the id of a container begins with 'cntr_'.",
                param=f"{at}.container",
                code="invalid_value",
            )
        return {"type": "code_interpreter", "container": container}
    check_network(container.network_policy, f"{at}.container")
    return {"type": "code_interpreter", "container": container.model_dump(exclude_none=True)}


def check_network(policy: NetworkPolicy | None, at: str) -> None:
    """Raise `ApiError` where a container is to reach something."""
    if policy is not None and policy.type != "disabled":
        raise unsupported_parameter(f"{at}.network_policy", "Containers of this server have no network.")
