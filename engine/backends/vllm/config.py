"""An operator's options → vLLM's configuration; whatever is wrong with them is told in one sentence.

vLLM is imported here, when an engine starts and not before: that takes 5 s.
"""

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from engine.backends.model_folder import check_model_type
from engine.backends.vocabulary_folder import write_vocabulary
from engine.errors import EngineConfigurationError, EngineUnavailable

DEFAULT_OPTIONS: Mapping[str, object] = {
    "scheduling_policy": "priority",
    "disable_log_stats": True,
    # gpt-oss has sliding-window layers, and with vLLM's own default (0) they keep nothing of what was generated: every
    # turn of an agent would compute the turn before it again. None keeps a checkpoint at every block, whatever its
    # size, at the price of KV memory (vllm/v1/core/single_type_kv_cache_manager.py, `reachable_block_mask`).
    "prefix_cache_retention_interval": None,
}
# Grammars begin with the turn, not behind what vLLM takes for the end of the reasoning.
STRUCTURED_OUTPUTS: Mapping[str, object] = {"backend": "xgrammar", "enable_in_reasoning": True}
MAX_REASON = 300  # characters of vLLM's own words in a message


class FrontEnd(NamedTuple):
    """Which of several processes with one engine core this is; -1: the one that starts the core."""

    place: int  # from 0 on
    places: int  # how many there are


ALONE = FrontEnd(0, 1)


def import_vllm() -> None:
    """Import vLLM. Raises `EngineConfigurationError` where that fails."""
    try:
        import vllm.v1.engine.async_llm  # noqa: F401
    except Exception as error:
        raise EngineConfigurationError(f"vLLM is installed but cannot be imported: {reason(error)}.") from error


def has_tokenizer(options: Mapping[str, object]) -> bool:
    """Whether vLLM has a tokenizer, without which it can hold a model to no grammar."""
    return not options.get("skip_tokenizer_init")


def speaks_harmony(options: Mapping[str, object]) -> bool:
    """Whether the model is a gpt-oss, whose tokenizer is made here: any other one needs its own."""
    return "tokenizer" not in options


def configure(
    model: str, options: Mapping[str, object], vocabulary: Path, front_end: FrontEnd = ALONE
) -> tuple[Any, Any]:
    """Return vLLM's configuration, and the arguments it was made of; it may wait for the hub.

    The tokenizer is written into the folder `vocabulary`, unless the options name another one.
    Raises `EngineConfigurationError`, and `EngineUnavailable` where the hub is out of reach.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs

    # vLLM would name a field that it does not know with all fields that it does: we say the nearest one.
    known = {field.name for field in fields(AsyncEngineArgs)}
    for name in options:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"; {close[0]!r} is one." if close else "."
            raise EngineConfigurationError(
                f"ENGINE_OPTIONS has {name!r}, which is not a field of vLLM's AsyncEngineArgs{hint}"
            )
    # Any other model brings its own tokenizer; without one at all there is nothing to be written.
    if has_tokenizer(options) and speaks_harmony(options):
        write_vocabulary(vocabulary)
    arguments: dict[str, Any] = {"tokenizer": str(vocabulary), **DEFAULT_OPTIONS, **options}
    outputs = arguments.get("structured_outputs_config", {})
    if isinstance(outputs, Mapping):  # an operator's own words count before ours
        arguments["structured_outputs_config"] = {**STRUCTURED_OUTPUTS, **outputs}
    if not has_tokenizer(options):
        del arguments["structured_outputs_config"]
    try:
        engine_args = AsyncEngineArgs(model=str(Path(model).expanduser()), **arguments)
        # As `vllm serve --api-server-count` sets them for each of its front ends; there is no public way to.
        engine_args._api_process_rank, engine_args._api_process_count = front_end
        config = engine_args.create_engine_config()
    except Exception as error:
        # The hub's error is only named: its package need not be there where this is read.
        if type(error.__cause__).__name__ == "LocalEntryNotFoundError":
            raise EngineUnavailable(f"MODEL={model} could not be fetched: {reason(error)}.") from error
        raise EngineConfigurationError(f"vLLM does not take this MODEL and ENGINE_OPTIONS: {reason(error)}.") from error
    if speaks_harmony(options):
        check_model_type(model, config.model_config.hf_config.model_type)
    return config, engine_args


def spawn_processes() -> None:
    """Have vLLM start its processes anew.

    It forks by default, as a library: the engine core would hold our listening socket and our clients' sockets.
    `vllm serve` sets the environment variable; this is the same without writing the environment.
    """
    from vllm import envs

    if not envs.is_set("VLLM_WORKER_MULTIPROC_METHOD"):
        envs.VLLM_WORKER_MULTIPROC_METHOD = "spawn"


def not_loaded(error: Exception) -> EngineConfigurationError:
    """Return what a failed start of an engine core means.

    What fails there (too little memory, a missing weight file) fails again at the next attempt, so it is an
    `EngineConfigurationError`: the server stops and says so, and whoever supervises it may start it again.
    """
    return EngineConfigurationError(
        f"vLLM could not load the model, and its messages above this one say why: {reason(error)}."
    )


def not_shared(error: Exception) -> EngineConfigurationError:
    """Return what it means that vLLM lacks a name that sharing an engine core needs: those are its own affair."""
    import vllm

    return EngineConfigurationError(
        f"vLLM {vllm.__version__} has changed what several workers on one engine core need ({reason(error)}): set "
        "WORKERS=1, or start a vLLM server and set ENGINE=vllm-server."
    )


def reason(error: Exception) -> str:
    """Return the first line of what an exception says, without its last full stop."""
    text = str(error)
    if isinstance(error, ValidationError):  # its first line only counts the errors
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"][:1]))  # the field alone, not the way into it
        text = f"{place}: {first['msg']}" if place else first["msg"].removeprefix("Value error, ")
    line = text.strip().partition("\n")[0].rstrip(".") or type(error).__name__
    return line if len(line) <= MAX_REASON else f"{line[: MAX_REASON - 1]}…"
