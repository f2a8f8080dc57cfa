"""Table of the licences in a CycloneDX SBOM, for `make sbom`."""

import json
import sys
from pathlib import Path
from typing import Any


def table(sbom: dict[str, Any]) -> str:
    """Return a line for each component, by name: name, version, licences."""
    rows = sorted((each["name"].lower(), each["version"], _licences(each)) for each in sbom["components"])
    return "".join(f"{name}\t{version}\t{licences}\n" for name, version, licences in rows)


def _licences(component: dict[str, Any]) -> str:
    """Return the expression of a component's metadata, or the names in its classifiers."""
    found = [
        each.get("expression") or each["license"].get("id") or each["license"]["name"]
        for each in component.get("licenses", [])
    ]
    return "; ".join(" ".join(each.split())[:100] for each in found) or "not named in its metadata"


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(table(json.loads(Path(sys.argv[1]).read_text())))
