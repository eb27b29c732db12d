"""Make a tiny model that can call one function, and its tokenizer: python make_model.py FOLDER. Nothing is downloaded.

Its weights begin at random. It is taught what calls look like, and that all four directions are as good.
"""

import random
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from walk import DIRECTIONS, STEPS, TASK

CALL = '<tool_call>\n{"name": "step", "arguments": {"direction": "%s"}}\n</tool_call>'
TEMPLATE = """
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}
"""


def a_walk() -> str:
    """Return the text of a walk in no direction."""
    turns = [
        f"<|im_start|>assistant\n{CALL % random.choice(DIRECTIONS)}<|im_end|>\n<|im_start|>tool\n{place}<|im_end|>\n"
        for place in range(1, STEPS + 1)
    ]
    return f"<|im_start|>user\n{TASK}<|im_end|>\n{''.join(turns)}"


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Make a byte-level BPE tokenizer for such texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([a_walk() for _ in range(100)], trainer)
    tokenizer.add_tokens(["<tool_call>", "</tool_call>"])  # respsite's parser looks for these
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>", chat_template=TEMPLATE.strip()
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Make a model of two layers, and teach it the form of a walk."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(200):
        batch = tokenizer([a_walk() for _ in range(16)], return_tensors="pt", padding=True)
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        loss = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def main(folder: str) -> None:
    """Write both into a folder."""
    random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)  # more only get in each other's way
    tokenizer = make_tokenizer()
    make_model(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1])
