"""Tool call syntax of model families, one file each, named in rollout.chat.calls."""

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
