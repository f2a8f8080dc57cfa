"""reported: what the program or the environment says that the attempt was worth."""

from pydantic import Field

from dagrpo.rewards.components import Component, Judged, Weighted

TOTAL = "reward"  # the name under which a program reports the whole


class Config(Weighted):
    """What a program or an environment reports; 0 when it reports nothing."""

    name: str = Field(
        "", description='Which of the rewards that are reported; "": the one named reward, else the sum of all.'
    )


def reported(judged: Judged, config: Config) -> float:
    """The reward of that name, or the whole."""
    rewards = judged.attempt.reported
    if config.name:
        return rewards.get(config.name, 0.0)
    return rewards[TOTAL] if TOTAL in rewards else sum(rewards[name] for name in sorted(rewards))


COMPONENT = Component(config=Config, function=reported)
