"""The JavaScript libraries that the playground brings along: `python -m tests.project.vendoring [PACKAGE@VERSION …]`.

`responses_app/static/vendor/manifest.json` names each with its version, its licence, what it is for, and the SHA-256 of
every file. Without arguments this fetches those packages with `npm pack` and writes their files again; it fails where
npm gives other bytes than the manifest says. With `PACKAGE@VERSION` it moves a package to that version: it fetches it,
writes its files into a folder of the new name, removes the old folder and updates the manifest. Review the difference,
and change the version in the scripts that import it.
"""

import base64
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from tests.kit.server import ROOT

VENDOR = ROOT / "responses_app/static/vendor"
MANIFEST = VENDOR / "manifest.json"
Library = dict[str, Any]


def libraries() -> list[Library]:
    """Return what the manifest names."""
    found: list[Library] = json.loads(MANIFEST.read_text())["libraries"]
    return found


def folder_of(library: Library) -> Path:
    """Return where a library lies: browsers keep its files for a year, so its version is in the path."""
    return VENDOR / f"{library['name']}-{library['version']}"


def sha256(path: Path) -> str:
    """Return the hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def problems() -> list[str]:
    """Return what is wrong with the files that are there, by the manifest."""
    named = {folder_of(each) / path: digest for each in libraries() for path, digest in each["files"].items()}
    there = {path for path in VENDOR.rglob("*") if path.is_file()} - {MANIFEST}
    missing = [f"{path} is missing" for path in named.keys() - there]
    unnamed = [f"{path} is not in the manifest" for path in there - named.keys()]
    changed = [f"{path} was changed" for path in named.keys() & there if sha256(path) != named[path]]
    return sorted(missing + unnamed + changed)


def fetch(library: Library) -> str:
    """Write a library's files as npm has them, with their hashes; return the integrity of the package."""
    with tempfile.TemporaryDirectory() as beside:
        name = f"{library['package']}@{library['version']}"
        packed = subprocess.run(
            ["npm", "pack", "--silent", name], cwd=beside, check=True, stdout=subprocess.PIPE, text=True
        )
        archive = Path(beside, packed.stdout.split()[-1])
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        with tarfile.open(archive) as opened:
            opened.extractall(beside, filter="data")
        folder = folder_of(library)
        folder.mkdir(parents=True, exist_ok=True)
        for path in library["files"]:
            source = Path(beside, "package", library["from"].get(path, path))
            shutil.copyfile(source, folder / path)
            library["files"][path] = sha256(folder / path)
    return integrity


def main(arguments: list[str]) -> None:
    """Fetch again, or move to other versions."""
    wanted = dict(each.rsplit("@", 1) for each in arguments)
    all_of_them = libraries()
    if unknown := wanted.keys() - {each["package"] for each in all_of_them}:
        raise SystemExit(f"The manifest names no {', '.join(sorted(unknown))}.")
    for library in all_of_them:
        version = wanted.get(library["package"], library["version"])
        if version != library["version"]:
            shutil.rmtree(folder_of(library), ignore_errors=True)
            library |= {"version": version, "integrity": ""}
        files = dict(library["files"])
        integrity = fetch(library)
        if library["integrity"] and (integrity, library["files"]) != (library["integrity"], files):
            raise SystemExit(f"npm gives other bytes for {library['package']} {version} than the manifest says.")
        library["integrity"] = integrity
        print(f"{library['package']} {version}: {', '.join(library['files'])}")
    MANIFEST.write_text(json.dumps({"libraries": all_of_them}, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
