"""Run untrusted Python programs in bubblewrap.

Cold, from a warm pool, or in sessions that keep variables. Linux on x86_64 and aarch64. The standard library alone; only
`python -m dagrpo_sandbox.server` needs aiohttp. No program is ever run without isolation: where
bubblewrap cannot be used, SandboxUnavailable says what to do.
"""

from dagrpo_sandbox.pool import SandboxPool, Session, run_cold
from dagrpo_sandbox.records import Limits, Result, SandboxClosed, SandboxUnavailable, Status

__all__ = ["Limits", "Result", "SandboxClosed", "SandboxPool", "SandboxUnavailable", "Session", "Status", "run_cold"]
