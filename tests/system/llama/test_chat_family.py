"""A model that is not gpt-oss: llama-server renders its chat template and tokenizes it, respsite reads what it says.

Only this finds a template or tokens on which llama.cpp and this server disagree.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.kit.sdk import MODEL, sdk_of
from tests.system.llama.conftest import front_of
from tests.system.llama.gguf import Vocabulary, follows, write_model
from tests.system.llama.server import LlamaServer
from tests.system.vllm.chat_models import write_model as write_tokenizer
from tests.unit.formats.families import MERGES, QWEN, VOCABULARY

CONTEXT = 4096
# llama.cpp's own Jinja does not know all that the template of `families` asks of Python's lists.
TEMPLATE = """\
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}{{ message.content + '<|im_end|>\\n' }}\
{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def qwen(path: Path) -> Path:
    """Write a Qwen-like model that answers "Hello world" to "yes"."""
    tokens = sorted(VOCABULARY, key=VOCABULARY.__getitem__)
    vocabulary = Vocabulary(
        [*tokens, *QWEN.ids],
        QWEN.ids.values(),
        end=QWEN.ids[QWEN.end],
        pre="qwen2",
        template=TEMPLATE,
        merges=[" ".join(pair) for pair in MERGES],
    )
    said = follows(
        {VOCABULARY["yes"]: [VOCABULARY["Hello"], VOCABULARY["Ġworld"], QWEN.ids[QWEN.end]]}, VOCABULARY["Ċ"]
    )
    return write_model(path, vocabulary, said, dice=VOCABULARY["no"], context=CONTEXT)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    folder = tmp_path_factory.mktemp("qwen")
    write_tokenizer(QWEN, folder)
    settings = {"model_format": "chat-template", "tokenizer": folder, "model": "qwen"}
    with (
        LlamaServer(folder, qwen(folder / "qwen.gguf"), context=CONTEXT) as llama,
        front_of(llama, folder / "front", **settings) as front,
        sdk_of(front) as client,
    ):
        yield client


def test_a_conversation_continues_with_its_own_tokens(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="yes", temperature=0)
    assert first.output_text == "Hello world"
    second = client.responses.create(model=MODEL, input="yes", previous_response_id=first.id, temperature=0)
    assert second.output_text == "Hello world"
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 1
