"""Check of access to GSM8K, in copies or at the hub."""

import base64
import os
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from dagrpo.cli.doctor.finding import Finding, check

SECONDS_OF_HUB = 8.0
HUB = "https://huggingface.co"
DATA_SET = "datasets/openai/gsm8k"  # of the check's experiment
MIRRORED = ("gsm8k/train", "gsm8k/test")  # .jsonl or .parquet
UNREACHABLE = (OSError, ValueError, HTTPException)  # what urlopen raises, of a malformed address too


def data(mirror: str | None = None) -> Finding:
    """Check access to GSM8K: in the folder `mirror`, or the one that DAGRPO_DATA names, else at the hub."""
    source = "--mirror" if mirror else "DAGRPO_DATA"
    mirror = mirror or os.environ.get("DAGRPO_DATA")
    if mirror:
        missing = [
            name
            for name in MIRRORED
            if not any(Path(mirror, f"{name}.{kind}").is_file() for kind in ("jsonl", "parquet"))
        ]
        fault = f"{', '.join(missing)} (.jsonl or .parquet) not in {mirror}, which {source} names"
        remedy = f"copy the files there (docs/tasks.md), or leave out {source} to ask the hub"
        return check("GSM8K", not missing, mirror, fault, remedy)
    return hub()


def hub() -> Finding:
    """Check that the hub, or the mirror that HF_ENDPOINT names, has GSM8K."""
    endpoint = os.environ.get("HF_ENDPOINT") or HUB
    address = endpoint.rpartition("@")[2]  # without a password
    try:
        with urlopen(request(f"{endpoint.rstrip('/')}/api/{DATA_SET}", method="HEAD"), timeout=SECONDS_OF_HUB):
            trouble = ""
    except HTTPError as error:
        trouble = f"answers {error.code} for {DATA_SET}"
    except UNREACHABLE as error:
        trouble = f"cannot be reached ({reason(error)})"
    remedy = (
        "check the network or export HTTPS_PROXY; or export HF_ENDPOINT of a mirror; or give a folder with copies: "
        "export DAGRPO_DATA=FOLDER, or of the check --mirror FOLDER in GPU_CHECK"
    )
    return check("GSM8K", not trouble, f"{address} has {DATA_SET}", f"{address} {trouble}", remedy)


def request(address: str, *, method: str = "GET", accept: str = "*/*") -> Request:
    """Return the request for an address, with user and password in the header Authorization. Raises ValueError if it is malformed.

    urllib takes them for a part of the host, and prints them. A redirection does not pass the header on.
    """
    parts = urlsplit(address)
    user, _, host = parts.netloc.rpartition("@")
    result = Request(urlunsplit(parts._replace(netloc=host)), method=method, headers={"Accept": accept})
    if user:
        pair = unquote(user if ":" in user else f"{user}:")
        result.add_unredirected_header("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}")
    return result


def reason(error: Exception) -> str:
    """Return why an address cannot be read, without the address: it may hold a password, and messages of urllib may quote it."""
    if isinstance(error, HTTPError):
        return f"HTTP status {error.code}"
    cause = getattr(error, "reason", error)
    is_of_system = isinstance(cause, OSError) and not isinstance(cause, URLError)
    return f"{type(cause).__name__}: {cause}" if is_of_system else type(error).__name__
