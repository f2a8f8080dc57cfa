"""How families of models write tool calls: one small file each, known by its name in rollout.chat.calls."""

from dagrpo.plugins import Plugins
from dagrpo.rollout.calls import CallSyntax

CALLS: Plugins[CallSyntax] = Plugins(
    what="call syntax",
    package=__name__,
    attribute="CALLS",
    group="dagrpo.calls",
    key="rollout.chat.calls",
    kind=CallSyntax,
)
