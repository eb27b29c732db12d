"""oss-harmony's own encoding: the oracle of our tokens and renderings. The product takes only the vocabulary of it."""

from functools import lru_cache

from openai_harmony import HarmonyEncoding, HarmonyEncodingName, load_harmony_encoding


@lru_cache(maxsize=1)
def harmony_encoding() -> HarmonyEncoding:
    """Return the library's encoding, loaded once a process."""
    return load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
