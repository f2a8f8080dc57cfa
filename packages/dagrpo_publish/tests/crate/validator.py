"""roc-validator on a crate, without a network: the JSON-LD contexts come from contexts.json, in which the crate's terms are as published.

Run by the Python of requirements/crate-test.lock: `python validator.py CRATE`. It prints each requirement that fails.
"""

import json
import sys
from pathlib import Path
from typing import Any

from rdflib.plugins.parsers import jsonld
from rdflib.plugins.shared.jsonld import context, util
from rocrate_validator import models, services
from rocrate_validator.utils import http

KNOWN = json.loads(Path(__file__).with_name("contexts.json").read_text())
PROFILE = "provenance-run-crate-0.5"
real = util.source_to_json


def served(source: Any, *arguments: Any, **options: Any) -> Any:
    """Return a context of this folder, anything else from where it is."""
    if isinstance(source, str) and source in KNOWN:
        return KNOWN[source], None
    return real(source, *arguments, **options)


class Answer:
    """An answer to a request for a context."""

    status_code = 200
    headers = {"Content-Type": "application/ld+json"}  # noqa: RUF012

    def __init__(self, url: str) -> None:
        self.text = json.dumps(KNOWN[url])
        self.content = self.text.encode()

    def json(self) -> Any:
        """Return the context."""
        return json.loads(self.text)


def answered(self: object, url: str, *arguments: Any, **options: Any) -> Answer:
    """Answer for a context alone."""
    if url not in KNOWN:
        raise OSError(f"{url} is not asked in tests")
    return Answer(url)


for module in (util, context, jsonld):
    if hasattr(module, "source_to_json"):
        module.source_to_json = served
http.HttpRequester.get = http.HttpRequester.head = answered
settings = services.ValidationSettings(
    rocrate_uri=sys.argv[1],
    profile_identifier=PROFILE,
    requirement_severity=models.Severity.REQUIRED,
    skip_availability_check=True,
)
result = services.validate(settings)
for issue in result.get_issues(models.Severity.REQUIRED):
    print(issue.check.identifier, (issue.message or "").strip(), getattr(issue, "violatingEntity", ""))
print(f"{len(result.executed_checks)} checks", file=sys.stderr)
sys.exit(0 if result.passed(models.Severity.REQUIRED) else 1)
