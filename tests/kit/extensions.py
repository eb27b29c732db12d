"""Tests of extensions that are not loaded are left out: `EXTENSIONS=none make test-fast` tries the kernel by itself."""

import os

import pytest

from responses_app.settings.extensions import chosen, load, ours

# The folders, files and tests, below tests/, that need an extension; some need several, and so stand several times.
NEEDS = {
    "console": """
        inprocess/admin inprocess/roles inprocess/watch inprocess/audit wire/watch system/admin
        contracts/adapters/test_panels.py inprocess/transports/test_places.py
    """,
    "containers": """
        inprocess/roles inprocess/transports/test_true_causes.py::test_a_tool_that_cannot_be_had_is_named_by_its_place
        inprocess/transports/test_fields.py::test_a_slip_is_told_the_right_name
        inprocess/transports/test_named_scopes.py inprocess/transports/test_cursors.py
        inprocess/transports/test_ownership.py
    """,
    "playground": """
        inprocess/test_kept_chats.py contracts/adapters/test_kept_chats.py system/playground inprocess/roles
        inprocess/transports/test_places.py inprocess/transports/test_ownership.py
    """,
    "terminal": "unit/test_agent_files.py unit/test_configure.py",
    "training": """
        inprocess/transports/test_rollouts.py inprocess/transports/test_rollout_export.py inprocess/roles
        inprocess/transports/test_cursors.py inprocess/transports/test_ownership.py inprocess/transports/test_forget.py
        inprocess/transports/test_every_api.py::test_the_bounds_of_sampling inprocess/transports/test_one_line.py
        inprocess/transports/test_told_sessions.py
    """,
}
# These compare all that there is with what is written down.
OF_ALL = """
    inprocess/goldens project inprocess/transports/test_missing_paths.py::test_all_that_is_served_is_told
    inprocess/conformance/test_paths_sdk.py
"""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs an extension that is not loaded."""
    loaded = {each.name.rpartition(".")[2] for each in load(chosen(os.environ))}
    missing = [path for name, paths in NEEDS.items() if name not in loaded for path in paths.split()]
    if not loaded.issuperset(ours()):
        missing += OF_ALL.split()
    left_out = {item for item in items if item.nodeid.removeprefix("tests/").startswith(tuple(missing))}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
