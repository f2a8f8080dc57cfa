"""Published scorers by name, also those of other packages."""

from dagrpo.core.plugins import Plugins
from dagrpo_answers.scorers import Scorer

SCORERS: Plugins[Scorer] = Plugins(
    what="scorer",
    package="dagrpo_answers.scorers",
    attribute="SCORERS",
    group="dagrpo.scorers",
    key="evaluation.scoring.also",
    kind=Scorer,
    several=True,
)
