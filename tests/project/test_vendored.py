"""The libraries of the playground are what npm has, each with its licence, and nothing else is beside them."""

import re

from tests.kit.server import ROOT
from tests.project.vendoring import VENDOR, folder_of, libraries, problems

SCRIPTS = ROOT / "responses_app/extensions/playground/static/playground"
KEYS = {"name", "version", "licence", "package", "integrity", "why", "files", "from"}
MAX_BYTES = 600_000  # of all of them, before they are compressed


def test_every_file_is_the_one_that_the_manifest_names() -> None:
    assert problems() == []
    for library in libraries():
        assert set(library) == KEYS, library["name"]
        assert "LICENSE" in library["files"]
        assert library["integrity"].startswith("sha512-")
        assert re.fullmatch(r"\d+\.\d+\.\d+", library["version"])
        assert len(library["why"]) > 30
    assert sum(path.stat().st_size for path in VENDOR.rglob("*") if path.is_file()) <= MAX_BYTES


def test_every_library_is_used_at_its_version() -> None:
    used = {
        found
        for path in SCRIPTS.glob("*.js")
        for found in re.findall(r"\.\./vendor/([\w.-]+)/", path.read_text())
    }  # fmt: skip
    assert used == {folder_of(each).name for each in libraries()}


def test_licences_are_those_that_the_manifest_names() -> None:
    words = {
        "MIT": "Permission is hereby granted, free of charge",
        "BSD-3-Clause": "BSD 3-Clause License",
        "MPL-2.0 OR Apache-2.0": "Apache License",
    }
    for library in libraries():
        assert words[library["licence"]] in (folder_of(library) / "LICENSE").read_text(), library["name"]
