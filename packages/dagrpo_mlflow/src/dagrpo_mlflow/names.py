"""dagrpo's names and values in MLflow's alphabet and limits."""

import hashlib
import posixpath
import re
from collections.abc import Mapping
from typing import Any

from dagrpo.config.overlay import flat
from dagrpo.utils.files import canonical_json

MAX_KEY = 250
MAX_PARAM_VALUE = 6000
MAX_TAG_VALUE = 8000
MAX_DATASET_DIGEST = 36
PLAIN = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9 ,.?!=:;'()%/-]*)?")  # means nothing in Markdown
WITH_TEXT = ("messages", "content", "reasoning_content")
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_\-. :/]")


def metric_name(name: str) -> str:
    """Replace characters outside MLflow's alphabet by `_`; `pass@1` becomes `pass_at_1`."""
    return _key(name.replace("@", "_at_"))


def digest_tags(kind: str, digests: Mapping[str, str]) -> dict[str, str]:
    """Return the sha256 of each file as a tag, such as `input.data/gsm8k/train.parquet`. kind: input, output."""
    return {_key(f"{kind}.{path}"): digest for path, digest in sorted(digests.items())}


def tag_value(value: object) -> str:
    """Cut a text to MLflow's length; one that is cut ends with its digest."""
    return _cut(str(value), MAX_TAG_VALUE)


def flatten(params: Mapping[str, Any]) -> dict[str, str]:
    """Flatten nested sections, as `runtime.engine.start_timeout: 300`. Lists stay whole, as JSON; None becomes null."""
    texts = {name: value if isinstance(value, str) else canonical_json(value) for name, value in flat(params).items()}
    return {_key(name): _cut(text, MAX_PARAM_VALUE) for name, text in texts.items()}


def as_written(value: Any) -> Any:
    """Return the value with its texts as blocks of code, unless plain: MLflow renders Markdown, `#### 53` as a heading."""
    if isinstance(value, Mapping):
        return {key: as_written(inner) if key in WITH_TEXT else inner for key, inner in value.items()}
    if isinstance(value, list):
        return [as_written(inner) for inner in value]
    if not isinstance(value, str) or PLAIN.fullmatch(value):
        return value
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", value)), default=0))
    return f"{fence}text\n{value}\n{fence}"


def _key(text: str) -> str:
    """Return a key in MLflow's alphabet, without path tricks, at most 250 characters; one that is cut ends with its digest."""
    key = posixpath.normpath(_NOT_ALLOWED.sub("_", text))
    return _cut(key, MAX_KEY)


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    ending = f"...sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    return text[: limit - len(ending)] + ending
