"""Tests that are known to fail at times for a reason that is not yet found: they run, and decide nothing.

The key is a test's id, with or without its parameters; the value is what was seen of it. The summary of a run names
each of them. Nothing that failed is run again, so a test that fails now and then is mended, or is named here meanwhile.
"""

QUARANTINED: dict[str, str] = {
    "tests/wire/transports/test_vllm_server_engine.py::test_an_engine_that_is_full_for_a_moment_is_asked_again": (
        "once, at a load of 13, the look at the engine's health had no time, and the request was refused"
    ),
}
