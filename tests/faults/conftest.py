"""Two sizes of every hunt for faults: a bounded one, and the whole one where DAGRPO_FAULTS says `whole`."""

from hypothesis import HealthCheck, Phase, settings

_COMMON = settings(
    deadline=None, suppress_health_check=list(HealthCheck), phases=(Phase.explicit, Phase.generate, Phase.shrink)
)
settings.register_profile("faults, bounded", _COMMON, max_examples=25, derandomize=True)
settings.register_profile("faults, whole", _COMMON, max_examples=2000)
