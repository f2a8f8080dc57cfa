"""GRPO post-training of language models as one reproducible DAG.

For notebooks: `dagrpo.load_scores`, `dagrpo.load_rollouts` and `dagrpo.load_metrics` read an experiment's results, and
`dagrpo.load_policy` its policy. They are imported when they are first used: `import dagrpo` costs nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dagrpo.api.policy import load_policy
    from dagrpo.api.results import load_metrics, load_rollouts, load_scores

__all__ = ["load_metrics", "load_policy", "load_rollouts", "load_scores"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("dagrpo.api.policy" if name == "load_policy" else "dagrpo.api.results"), name)
