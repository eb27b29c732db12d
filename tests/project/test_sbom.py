"""The bill of materials that lies beside the wheel."""

import json
import os
import subprocess
import sys
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from responses_app import __version__
from tests.kit.server import ROOT
from tests.project.pinning import SERVES, pins
from tests.project.vendoring import libraries


def written(folder: Path, seed: str) -> str:
    """Write the bill as `make wheel` does, and return it."""
    environ = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", "PYTHONHASHSEED": seed}
    folder.mkdir()
    subprocess.run([sys.executable, "-m", "tests.project.sbom", folder], cwd=ROOT, env=environ, check=True)
    return (folder / f"respsite-{__version__}.cdx.json").read_text()


def test_it_names_all_that_serves_and_is_the_same_each_time(tmp_path: Path) -> None:
    text = written(tmp_path / "one", "1")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert text == written(tmp_path / "other", "2")
    bill = json.loads(text)
    named = {each["purl"]: each for each in bill["components"]}
    python = {f"pkg:pypi/{pin.name}@{pin.version}" for pin in pins(SERVES)}
    assert len(named) == len(python) + len(libraries())
    assert python < named.keys()
    django = next(each for purl, each in named.items() if purl.startswith("pkg:pypi/django@"))
    (files,) = django["externalReferences"]
    assert len(files["hashes"]) == 2, "a wheel and a source"
    assert django["licenses"] == [{"license": {"id": "BSD-3-Clause"}}]
    needs = {each["ref"]: each.get("dependsOn", []) for each in bill["dependencies"]}
    assert any(each.startswith("pkg:npm/") for each in needs["respsite"])
    assert any(each.startswith("pkg:pypi/asgiref@") for each in needs[django["bom-ref"]])
