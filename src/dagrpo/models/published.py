"""Configs of published models, known without the hub."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

# By repository.
CONFIGS: Mapping[str, Mapping[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("published.yaml").read_text(encoding="utf-8")
)["models"]
