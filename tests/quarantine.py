"""Tests that are known to fail at times for a reason that is not yet found: they run, and decide nothing.

The key is a test's id, with or without its parameters; the value is what was seen of it. The summary of a run names
each of them. Nothing that failed is run again, so a test that fails now and then is mended, or is named here meanwhile.
"""

_GRAMMAR = (
    "tests/system/vllm/test_whole_server_contents.py::test_a_token_that_the_grammar_rejects_fails_that_response_alone"
)
QUARANTINED: dict[str, str] = {
    f"{_GRAMMAR}[front_with_vllm]": "once in about ten runs the response failed before its reasoning item had begun",
    "tests/wire/transports/test_vllm_server_engine.py::test_an_engine_that_is_full_for_a_moment_is_asked_again": (
        "once, at a load of 13, the look at the engine's health had no time, and the request was refused"
    ),
}
