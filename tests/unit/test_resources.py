"""A resource is its folder: nothing else has to name it for its models and endpoints to be there."""

from pathlib import Path

import pytest

from responses_app import resources
from responses_app.api.endpoints import table_with
from responses_app.kit.resources import modules_of_resources
from responses_app.resources.audit.endpoints import ENDPOINTS

ENDPOINTS_OF = "responses_app.resources.audit.endpoints"


def test_what_a_new_folder_brings_is_found_by_the_names_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = [module.__name__ for module in modules_of_resources("endpoints")]
    folder = tmp_path / "zz_notes"
    folder.mkdir()
    files = {"endpoints": f"from {ENDPOINTS_OF} import ENDPOINTS", "__init__": "", "keeping": "", "other": ""}
    for name, content in files.items():
        (folder / f"{name}.py").write_text(content)
    monkeypatch.setattr(resources, "__path__", [*resources.__path__, str(tmp_path)])
    found = [module.__name__ for module in modules_of_resources("endpoints")]
    assert found == [*known, "responses_app.resources.zz_notes.endpoints"]
    names = ("endpoints", "keeping", "other")
    assert [module.__name__ for module in modules_of_resources()][-3:] == [
        f"responses_app.resources.zz_notes.{name}" for name in names
    ]
    assert table_with([])[-1] is ENDPOINTS[0]


@pytest.mark.parametrize(
    "gatherer", ["models/__init__", "stores/database/transfer/erasure", "management/commands/fork_workers"]
)
def test_what_gathers_resources_lists_none(gatherer: str) -> None:
    source = (Path(resources.__path__[0]).parent / f"{gatherer}.py").read_text()
    assert "modules_of_resources(" in source
    assert [line for line in source.splitlines() if "responses_app.resources." in line and "rollouts" not in line] == []
