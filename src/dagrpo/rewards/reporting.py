"""What a program or an environment reports: rewards by name, and what they say about an attempt as a whole."""

from collections.abc import Mapping

from dagrpo.records import Verdict

TOTAL = "reward"  # the name under which a program reports the whole
RIGHT = 1.0  # what an attempt is worth, at least, that counts as right


def whole(rewards: Mapping[str, float]) -> float:
    """The one named reward, else the sum of all."""
    return rewards[TOTAL] if TOTAL in rewards else sum(rewards[name] for name in sorted(rewards))


def verdict_of(rewards: Mapping[str, float]) -> Verdict:
    """Right from RIGHT on; missing where nothing was reported."""
    if not rewards:
        return "missing"
    return "right" if whole(rewards) >= RIGHT else "wrong"
