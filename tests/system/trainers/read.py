"""Read an export with the package of its format: python read.py FORMAT FILE. Prints what it has read, as JSON.

Runs in the venv of requirements.txt, and knows nothing of this server.
"""

import asyncio
import importlib.abc
import importlib.machinery
import json
import logging
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np


def nemo_gym(lines: list[str]) -> Iterator[Any]:
    """Put the entries into NeMo Gym's own store, and let its builder make trajectories of what the store returns."""
    from nemo_gym.token_id_capture import TokenCaptureStore, TokenEntry, trajectories_for_rollout
    from nemo_gym.token_id_capture.builder import prefix_merging

    entries = [TokenEntry.model_validate_json(line) for line in lines]
    with tempfile.TemporaryDirectory() as folder:
        store = TokenCaptureStore(folder)
        for entry in entries:
            store.append(entry)
        for rollout in dict.fromkeys(entry.rollout_id for entry in entries):
            built = prefix_merging(list(store.freeze_now(rollout).entries))
            response = {"id": entries[-1].response_id, "output": []}
            delivered = trajectories_for_rollout(rollout, [Path(folder)], verified_response=response)
            yield {
                "rollout": rollout,
                "failures": built.notes.parent_link_failures,
                "chains": [
                    [
                        [link.entry.prompt_token_ids, link.entry.generation_token_ids, link.entry.generation_log_probs]
                        for link in chain.links
                    ]
                    for chain in built.chains
                ],
                "masked": delivered["mask_sample"],
                "error": delivered.get("error"),
                "delivered": delivered["rebuilt_response"],
                "terminal": delivered["metrics"]["terminal_attribution"],
            }


def harbor(lines: list[str]) -> Iterator[Any]:
    """Read the contexts; and have Harbor's own chat gather the same calls, which must come to the same."""
    # pydantic takes the older class under Python 3.12 only: Harbor itself wants that one.
    import typing

    import typing_extensions

    typing.TypedDict = typing_extensions.TypedDict
    from harbor.llms.base import LLMResponse
    from harbor.llms.chat import Chat
    from harbor.models.agent.context import AgentContext

    async def gathered(detail: Any) -> Any:
        turns = zip(detail["prompt_token_ids"], detail["completion_token_ids"], detail["logprobs"], strict=True)
        chat = Chat(MagicMock())
        for prompt, completion, logprobs in turns:
            answer = LLMResponse("", prompt_token_ids=prompt, completion_token_ids=completion, logprobs=logprobs)
            chat._model.call = lambda answer=answer, **_: asyncio.sleep(0, answer)
            await chat.chat("")
        return chat.rollout_details[0]

    for line in lines:
        context = AgentContext.model_validate_json(line)
        details = context.rollout_details or []
        yield {**context.model_dump(mode="json"), "gathered": [asyncio.run(gathered(each)) for each in details]}


def verifiers(lines: list[str]) -> Iterator[Any]:
    """Read the traces, and return their branches: its training samples."""
    from verifiers.v1.trace import WireTrace

    for line in lines:
        trace = WireTrace.model_validate_json(line)
        yield {
            "id": trace.id,
            "reward": trace.reward,
            "turns": trace.num_turns,
            "output_tokens": trace.usage.completion_tokens if trace.usage else 0,
            "branches": [
                {"token_ids": each.token_ids, "mask": each.sampled_mask, "logprobs": each.logprobs}
                for each in trace.branches
            ],
        }


def tinker(lines: list[str]) -> Iterator[Any]:
    """Read each datum as Tinker's server does, and make one as its clients do."""
    import tinker
    from tinker.types._pydantic_types.datum import Datum

    for line in lines:
        row = json.loads(line)["datum"]
        datum = Datum.model_validate_json(json.dumps(row))
        tensors = {name: tensor.to_numpy() for name, tensor in datum.loss_fn_inputs.items()}
        made = tinker.Datum(datum.model_input, {**tensors, "advantages": tensors["mask"] * 0.5})
        yield {
            "input": datum.model_input.to_ints(),
            "tensors": {name: [str(each.dtype), each.tolist()] for name, each in tensors.items()},
            "advantages": made.loss_fn_inputs["advantages"].tolist(),
        }


def trl(lines: list[str]) -> Iterator[Any]:
    """Read the samples, and pack them as its trainer does; and have TRL itself make samples of the same calls.

    The first line is a list of conversations, each a list of calls: prompt, output, log probabilities.
    """
    # What it imports for other things is some gigabytes: PyTorch and what is built on it.
    import trl as trl_package

    heavy = ("torch", "accelerate", "datasets", "transformers", "trl.trainer", "trl.chat_template_utils")
    sys.meta_path.insert(0, Missing(*heavy))
    # Its package imports the trainer, which needs PyTorch: the module of the samples is imported alone.
    folder = types.ModuleType("trl.experimental.async_grpo")
    folder.__path__ = [str(Path(trl_package.__file__ or "").parent / "experimental" / "async_grpo")]
    sys.modules[folder.__name__] = folder
    from trl.experimental.async_grpo import async_rollout_worker as worker

    conversations, *rows = [json.loads(line) for line in lines]
    samples, own = [], []
    for row in rows:
        fields = {name: row[name] for name in ("prompt", "completion", "model_version", "group_id", "metrics")}
        sample = worker.RolloutSample(
            **fields,
            input_ids=np.asarray(row["input_ids"], dtype=np.int64),
            completion_mask=np.asarray(row["completion_mask"], dtype=np.int64),
            old_log_probs=np.asarray(row["old_log_probs"], dtype=np.float32),
            advantage=row["reward"] or 0.0,
        )
        samples.append(
            [sample.input_ids.tolist(), sample.completion_mask.tolist(), row["old_log_probs"], sample.model_version]
        )
    for calls in conversations:
        turns = [worker.TurnRecord(*call) for call in calls]
        made, drift = worker._chain_to_sequences(turns, "", 1)
        own.append({"drift": drift, "rows": [[s.input_ids, s.completion_mask, s.old_log_probs] for s in made]})
    yield {"samples": samples, "own": own}


class Missing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds these packages, whether they are installed or not, with empty classes in them."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if any(name == each or name.startswith(f"{each}.") for each in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        """Make a module, all names of which are classes that take anything."""
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: type(name, (), {"__init__": lambda *_, **__: None})  # type: ignore[method-assign]
        module.__version__ = "99"  # type: ignore[attr-defined]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to run."""


if __name__ == "__main__":
    logging.disable()
    name, file = sys.argv[1:]
    reader = {"nemo-gym": nemo_gym, "harbor": harbor, "verifiers": verifiers, "tinker": tinker, "trl": trl}[name]
    json.dump(list(reader(Path(file).read_text().splitlines())), sys.stdout)
