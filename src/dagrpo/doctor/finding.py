"""What was found of one thing that a run may need."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the diagnosis. Never holds a secret: of a credential only whether it is there."""

    name: str  # "GPU"
    found: str  # in words; of something missing, what is wrong
    is_there: bool = True
    is_needed: bool = True  # without it, runs fail; else they do without
    remedy: str = ""  # a command, or what to do, where it is missing

    @property
    def is_trouble(self) -> bool:
        return self.is_needed and not self.is_there

    @property
    def state(self) -> str:
        """ok; missing: a run needs it; none: a run does without."""
        return "ok" if self.is_there else "missing" if self.is_needed else "none"
