"""`python -m tests.project.sbom FOLDER`, what `make wheel` calls: the bill of materials of what serves, as CycloneDX.

It names each package of `constraints.txt` with its version, its licence, what it needs, and the hashes of its files,
and each JavaScript library that lies in the wheel. Two runs on one commit write the same bytes.
"""

import os
import sys
from base64 import b64decode
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import distribution
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from responses_app import __version__
from tests.project.pinning import EXTRAS, OURS, SERVES, Pin, needed, pins
from tests.project.vendoring import libraries

LICENCE = "Apache-2.0"
_licences = LicenseFactory()


def bill() -> Bom:
    """Return what serves: this package, the packages that it is installed with, and the libraries that lie in it."""
    known = {pin.name: _package(pin) for pin in pins(SERVES)}
    whole = Component(
        name="respsite", version=__version__, type=ComponentType.APPLICATION, bom_ref="respsite",
        licenses=[_licences.make_from_string(LICENCE)],
    )  # fmt: skip
    bundled = list(_bundled())
    made = Bom(components=[*known.values(), *bundled])
    made.metadata.component = whole
    made.metadata.timestamp = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), UTC)
    made.serial_number = uuid5(NAMESPACE_URL, f"respsite {__version__} {made.metadata.timestamp} {SERVES.read_text()}")
    needs = needed(EXTRAS)
    made.register_dependency(whole, [*(known[name] for name in needs[OURS]), *bundled])
    for name, package in known.items():
        made.register_dependency(package, [known[each] for each in needs.get(name, ())])
    return made


def _package(pin: Pin) -> Component:
    address = PackageURL("pypi", name=pin.name, version=pin.version)
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=each) for each in pin.hashes]
    licences = [_licences.make_from_string(said)] if (said := _licence(pin.name)) else []
    return Component(
        name=pin.name, version=pin.version, type=ComponentType.LIBRARY, bom_ref=str(address), purl=address,
        external_references=[_files(address, hashes)], licenses=licences,
    )  # fmt: skip


def _licence(name: str) -> str:
    """Return what a package says of its licence: an expression, or the last words of its classifiers."""
    about = distribution(name).metadata
    classified = [
        each.rpartition(" :: ")[2] for each in about.get_all("Classifier", ()) if each.startswith("License ::")
    ]
    said = str(about.get("License-Expression", "")) or " AND ".join(classified) or str(about.get("License", ""))
    return said.strip().partition("\n")[0]  # some have the whole text there


def _bundled() -> Iterator[Component]:
    """Yield the JavaScript libraries of the playground."""
    for library in libraries():
        address = PackageURL("npm", name=library["package"], version=library["version"])
        packed = HashType(
            alg=HashAlgorithm.SHA_512, content=b64decode(library["integrity"].removeprefix("sha512-")).hex()
        )
        yield Component(
            name=library["name"], version=library["version"], type=ComponentType.LIBRARY, bom_ref=str(address),
            purl=address, licenses=[_licences.make_from_string(library["licence"])], description=library["why"],
            external_references=[_files(address, [packed])],
        )  # fmt: skip


def _files(address: PackageURL, hashes: list[HashType]) -> ExternalReference:
    return ExternalReference(type=ExternalReferenceType.DISTRIBUTION, url=XsUri(str(address)), hashes=hashes)


if __name__ == "__main__":
    Path(sys.argv[1], f"respsite-{__version__}.cdx.json").write_text(JsonV1Dot6(bill()).output_as_string(indent=2))
