"""transformers' model classes, imported without scikit-learn and scipy.

For an option of assisted decoding transformers imports scikit-learn, and with it scipy.stats and pandas; for object detection,
scipy.optimize: 2.6 s of processor time in every process that has a model, for tasks that dagrpo does not have. Other modules can
still import those packages.
"""

import sys
from typing import Any

from transformers.utils import is_scipy_available, is_sklearn_available


def _seems_missing(package: str, is_available: Any) -> None:
    """Make transformers look for a package while the import system knows of none: it looks once, and caches the result."""
    imported = sys.modules.get(package)
    sys.modules[package] = None  # type: ignore[assignment]  # "is not installed", to the import system
    is_available.cache_clear()
    try:
        is_available()
    finally:
        del sys.modules[package]
        if imported is not None:
            sys.modules[package] = imported


_seems_missing("sklearn", is_sklearn_available)
_seems_missing("scipy", is_scipy_available)

from transformers import PreTrainedConfig, PreTrainedModel  # noqa: E402  not before the above
from transformers.core_model_loading import revert_weight_conversion  # noqa: E402
from transformers.initialization import no_init_weights  # noqa: E402

__all__ = ["PreTrainedConfig", "PreTrainedModel", "no_init_weights", "revert_weight_conversion"]
