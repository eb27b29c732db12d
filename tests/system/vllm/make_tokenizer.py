"""Write a Hugging Face tokenizer folder for gpt-oss from the vocabulary embedded in oss-harmony: no download.

    python -m tests.system.vllm.make_tokenizer FOLDER

27 MB, in 6 s. Only vLLM's own text endpoints (its `/v1/responses`, for comparisons) need it; tokens in, tokens out
need none.
"""

import base64
import pathlib
import sys
import tempfile

from openai_harmony import HarmonyEncodingName, load_harmony_encoding
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

ORDINARY = 199_998  # token ids below this one are plain byte sequences
SPECIAL = {
    199998: "<|startoftext|>",
    199999: "<|endoftext|>",
    200002: "<|return|>",
    200003: "<|constrain|>",
    200005: "<|channel|>",
    200006: "<|start|>",
    200007: "<|end|>",
    200008: "<|message|>",
    200012: "<|call|>",
    200018: "<|endofprompt|>",
}
PATTERN = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)


def main(folder: str) -> None:
    encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    with tempfile.NamedTemporaryFile("wb", suffix=".tiktoken") as vocabulary:
        for token in range(ORDINARY):
            vocabulary.write(base64.b64encode(bytes(encoding._inner.decode_bytes([token]))) + b" %d\n" % token)
        vocabulary.flush()
        tokenizer = TikTokenConverter(vocab_file=vocabulary.name, pattern=PATTERN).converted()
    names = [SPECIAL.get(i, f"<|reserved_{i}|>") for i in range(ORDINARY, 200_019)]
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|return|>", pad_token="<|endoftext|>")
    text = "<|start|>user<|message|>Grüße, 3 дня of tokens<|end|>"
    assert fast(text)["input_ids"] == encoding.encode(text, allowed_special="all")
    fast.save_pretrained(pathlib.Path(folder))


if __name__ == "__main__":
    main(sys.argv[1])
