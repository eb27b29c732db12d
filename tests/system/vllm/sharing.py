"""Which tests run in one process, where several do: those of one vLLM, whose start is 30 s of imports."""

import re

from xdist.scheduler import LoadScopeScheduling

# Each vLLM of the fixtures, and what the ids of its tests have in them. What takes longest begins.
VLLMS = {
    "server": r"\[server|[-\[]front_of_server|/test_(pool|rollouts|server_contract|whole_server_agents)\.",
    "workers": r"/test_workers\.py",
    "local": r"\[local|/test_local_contract\.py",
    "front": r"[-\[]front_with_vllm",
    "qwen": r"[-\[]front_of_qwen|/test_early_calls\.",
    "llama": r"[-\[]front_with_llama",
    "seeing": r"/test_pictures\.py",
    "weights here": r"/test_weights\.py::.*\[here\]",
    "weights there": r"/test_weights\.py::.*\[there\]|/test_rollout_weights\.",
    "shared weights": r"/test_shared_weights\.py",
}
ORDER = (*VLLMS, None)


def vllm_of(nodeid: str) -> str | None:
    """Return which of the shared vLLMs a test asks; None: it asks none, or starts its own."""
    if not nodeid.startswith("tests/system/vllm/"):
        return None
    return next((name for name, pattern in VLLMS.items() if re.search(pattern, nodeid)), None)


class OneVllmEach(LoadScopeScheduling):
    """Gives all tests of one vLLM to one process, and the others to either, file by file."""

    def _split_scope(self, nodeid: str) -> str:
        return vllm_of(nodeid) or nodeid.partition("::")[0]
