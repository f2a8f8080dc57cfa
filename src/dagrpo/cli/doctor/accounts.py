"""Checks of credentials, and of the hub if requested.

Only the presence of a credential is reported.
"""

import os
from collections.abc import Iterator

import httpx
from huggingface_hub import constants, get_token

from dagrpo.cli.doctor.finding import Finding
from dagrpo.core.redaction import redacted
from dagrpo.utils.hub import endpoint

SECONDS = 10.0
VARIABLES = {
    "MLFLOW_TRACKING_URI": "an MLflow server; without one, history is kept in mlflow.db",
    "MLFLOW_TRACKING_TOKEN": "for an MLflow server that asks for one",
    "AWS_ACCESS_KEY_ID": "for a DVC remote on S3",
    "GOOGLE_APPLICATION_CREDENTIALS": "for a DVC remote on Google Cloud",
}


def findings(*, online: bool) -> Iterator[Finding]:
    """Yield each credential; with `online` also the hub's answer."""
    has_token = get_token() is not None
    yield Finding(
        name="HF_TOKEN",
        found="present" if has_token else "not set",
        is_there=has_token,
        is_needed=False,
        remedy="for gated models: `hf auth login`, or set HF_TOKEN",
    )
    for name, purpose in VARIABLES.items():
        is_set = bool(os.environ.get(name))
        yield Finding(
            name=name, found="present" if is_set else "not set", is_there=is_set, is_needed=False, remedy=purpose
        )
    if online:
        yield _hub()


def _hub() -> Finding:
    """Check that the hub answers; a refusal counts as an answer."""
    try:
        found, answers = f"{endpoint()} answers {httpx.head(constants.ENDPOINT, timeout=SECONDS).status_code}", True
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        found, answers = redacted(f"{endpoint()} cannot be reached ({type(error).__name__})"), False
    return Finding(
        name="hub",
        found=found,
        is_there=answers,
        remedy="check the network; behind a proxy set HTTPS_PROXY; or set HF_ENDPOINT to a mirror, or data.mirror to copies",
    )
