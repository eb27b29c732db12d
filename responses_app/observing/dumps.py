"""Core dumps, which have all that a process holds in memory: of prompts, answers and keys."""

import resource

# Less than any dump has, so that none is written as a file. And, unlike 0, this is also how a process says that it does
# not want one where the system hands dumps to a program (`|` in /proc/sys/kernel/core_pattern); see core(5).
_NO_DUMP = 1


def forbid_core_dumps() -> None:
    """Have this process and all that it starts leave no core dump."""
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    limit = 0 if most == 0 else _NO_DUMP
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))
