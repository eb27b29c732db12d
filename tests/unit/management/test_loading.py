"""What a fork server keeps of the code that it has not imported."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from responses_app.management.commands.fork_workers import KeptModules, _KeptLoader
from tests.kit.server import ROOT

LOADS = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "respsite.settings"
import django
django.setup(set_prefix=False)
from django.conf import settings
from responses_app.management.commands.fork_workers import KeptModules, load_application
load_application(settings.RESPSITE)
before = set(sys.modules)
import respsite.asgi
import responses_app.web.servers.daphne_http
new = {name for name in set(sys.modules) - before if name.partition(".")[0] in ("engine", "responses_app", "respsite")}
print(sorted(name for name in new if type(sys.modules[name].__spec__.loader).__name__ != "_KeptLoader"), len(new) > 1)
"""


def test_a_module_is_what_its_file_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "kept_package"
    folder.mkdir()
    files = {"kept_package": folder / "__init__.py", "kept_package.part": folder / "part.py"}
    for name, file in files.items():
        file.write_text(f"VERSION = 1\nNAME = {name!r}\n")
    finder = KeptModules({name: _KeptLoader(name, file) for name, file in files.items()})
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    for file in files.values():
        file.write_text("VERSION = 2\n")
    try:
        part = import_module("kept_package.part")
        assert (part.VERSION, part.NAME, part.__file__) == (1, "kept_package.part", str(files["kept_package.part"]))
        assert import_module("kept_package").VERSION == 1
    finally:
        for name in files:
            sys.modules.pop(name, None)


def test_a_worker_takes_no_module_of_this_program_from_the_disk() -> None:
    done = subprocess.run([sys.executable, "-c", LOADS], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[] True\n"
