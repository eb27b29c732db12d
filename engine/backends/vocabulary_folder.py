"""A Hugging Face tokenizer folder that tells vLLM which bytes each Harmony token stands for, and nothing else.

    python -m engine.backends.vocabulary_folder FOLDER

vLLM holds a model to a grammar only where it has a tokenizer; xgrammar asks it for the vocabulary. The vocabulary is
oss-harmony's, so nothing is downloaded. The merges, most of 27 MB, are left out: no text is ever encoded by it.

The special tokens are spelled with a byte in front that no UTF-8 text has. By their usual names `<|end|>` would be
seven harmless characters within a JSON string, and a model could sample the token there and so break its own message.
"""

import json
import sys
from pathlib import Path

from engine.formats.chat_template.vocabulary import BYTE_OF
from engine.formats.harmony.encoding import ENDOFTEXT, RETURN, SPECIAL_TOKENS, decode_tokens, token_bytes

NO_TEXT = "\u00ff"  # stands for the byte 0xff


def write_vocabulary(folder: Path) -> None:
    """Write the files into a folder, which is made: 4 MB, in a second."""
    folder.mkdir(parents=True, exist_ok=True)
    spelled = {byte: character for character, byte in BYTE_OF.items()}
    ordinary = range(SPECIAL_TOKENS.start)
    special = {token: NO_TEXT + decode_tokens((token,)) for token in SPECIAL_TOKENS}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": token, "content": name, **_SPECIAL} for token, name in special.items()],
        "normalizer": None,
        "pre_tokenizer": _BYTES,
        "post_processor": None,
        "decoder": _BYTES,
        "model": {
            "type": "BPE",
            "vocab": {"".join(spelled[byte] for byte in token_bytes(token)): token for token in ordinary},
            "merges": [],  # none, as nothing is encoded
        },
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": special[RETURN],
        "pad_token": special[ENDOFTEXT],
        "clean_up_tokenization_spaces": False,
    }
    (folder / "config.json").write_text(json.dumps(_MODEL), encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False), encoding="utf-8")


# vLLM looks for a model beside every tokenizer, and where there is none it waits 2 s and looks again, in each of its
# processes (vllm/transformers_utils/config.py, `get_config`). Without a version transformers takes it for Mistral's.
_MODEL = {"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "transformers_version": "5.0.0"}
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_SPECIAL = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


if __name__ == "__main__":
    write_vocabulary(Path(sys.argv[1]))
