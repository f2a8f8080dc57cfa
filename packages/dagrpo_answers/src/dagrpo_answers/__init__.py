"""Extract answers from language models' texts, and compare them.

`verify` and `Judge` are imported when first asked for, with the grammar behind them.
"""

import importlib
from typing import TYPE_CHECKING, Any

from dagrpo_answers.errors import UserError

if TYPE_CHECKING:
    from dagrpo_answers.judging import Judge, verify

__all__ = ["Judge", "UserError", "verify"]


def __getattr__(name: str) -> Any:
    """Return `verify` or `Judge`. What imports the error alone does not depend on the grammar."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.judging"), name)
