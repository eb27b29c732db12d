"""A vLLM server with the Qwen3-like model, and a server of ours with the Llama-like one in its process."""

import json
from pathlib import Path
from typing import Any

from tests.kit.sdk import MODEL
from tests.system.vllm.chat_models import MAX_MODEL_LEN, SAMPLED, SCRIPT_VARIABLE, write_model
from tests.system.vllm.fronts import LoadingServer
from tests.system.vllm.server import API_KEY, BLOCK_SIZE, ENGINE_OPTIONS, STRUCTURED, VllmProcess
from tests.unit.formats.families import LLAMA, QWEN

__all__ = ["API_KEY", "BLOCK_SIZE"]
NUMBERS = " ".join(map(str, range(60)))
KV_BLOCKS = 400
SMALL = {"max-model-len": MAX_MODEL_LEN, "num-gpu-blocks-override": KV_BLOCKS}  # flags
DECIDED = {"Decide: yes.": "yes", "Decide: ten.": "J", "Decide: two.": "2"}  # thinking is over before the prompt ends
FORCED = "tests.system.vllm.families:ForcedText"
_THOUGHT = "<think>\nThe user wants something, and it is not much of a thing.\n</think>\n\n"


def _script() -> dict[str, dict[str, str]]:
    """Return what each family says, by the text that comes last in the prompt."""
    said = {
        "Say hello.": "Hello world",
        "Count.": NUMBERS,
        "°C": "It is mild.",
        "Endless.": "Hello" * 1500 + SAMPLED,  # what is sampled may end at any token
    }
    look = '<tool_call>\n{"name": "tests.look", "arguments": {"text": "%s"}}\n</tool_call>'
    qwen = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "%s"}}\n</tool_call>'
    llama = '{"name": "get_weather", "parameters": {"city": "%s"}}'
    return {
        "qwen": {when: _THOUGHT + text for when, text in said.items()}
        | {
            "The weather of Paris?": _THOUGHT + qwen % "Paris",
            "Two cities!": f"{_THOUGHT}{qwen % 'Paris'}\n{qwen % 'Rome'}",
            "Look twice!": f"{_THOUGHT}{look % 'here'}\n{look % 'there'}",
            "saw here": _THOUGHT + look % "there",
            "saw there": "Both are seen.",
            "Whatever.": _THOUGHT + SAMPLED,
            **DECIDED,
        },
        "llama": said
        | DECIDED
        | {"The weather of Paris?": llama % "Paris", "Two cities!": f"{llama % 'Paris'}; {llama % 'Rome'}"},
    }


def write_script(path: Path) -> str:
    """Write the script; return the value of the variable that names it."""
    path.write_text(json.dumps(_script()), encoding="utf-8")
    return str(path)


class QwenServer(VllmProcess):
    def __init__(self, folder: Path) -> None:
        self.model = folder / "qwen"
        write_model(QWEN, self.model)
        own = {"model": self.model, "served-model-name": "qwen", "logits-processors": FORCED, **STRUCTURED}
        super().__init__(folder, flags={**SMALL, **own})

    @property
    def settings(self) -> dict[str, Any]:
        """What a server of ours before it is set to."""
        return {
            "engine": "vllm-server",
            "engine_url": self.url,
            "engine_api_key": API_KEY,
            "model": "qwen",
            "model_name": MODEL,
            "model_format": "chat-template",
            "tokenizer": self.model,
        }


class LlamaFront(LoadingServer):
    def __init__(self, folder: Path) -> None:
        write_model(LLAMA, folder / "llama")
        options = {
            **ENGINE_OPTIONS,
            "max_model_len": MAX_MODEL_LEN,
            "num_gpu_blocks_override": KV_BLOCKS,
            "logits_processors": [FORCED],
        }
        super().__init__(folder, engine_options=json.dumps(options), model=folder / "llama", model_format="auto")
        del self.environ["PYTHONWARNINGS"]  # vLLM looks at a model in a process of its own, which warns


SCRIPT = SCRIPT_VARIABLE
