"""Tool call syntax of model families, one file each, named in rollout.chat.calls."""

from dagrpo.chat.tool_calls import CallSyntax
from dagrpo.core.plugins import Plugins

CALLS: Plugins[CallSyntax] = Plugins(
    what="call syntax",
    package=__name__,
    attribute="CALLS",
    group="dagrpo.calls",
    key="rollout.chat.calls",
    kind=CallSyntax,
)
