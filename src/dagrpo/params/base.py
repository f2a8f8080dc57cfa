"""What every section of params.yaml is: closed, frozen, strict."""

import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

Extractor = Literal["strict", "flexible", "exact"]  # read by reward and by evaluation
EXTRACTION = (
    "strict: in the form the prompt asks for (after ####, after Answer:, in \\boxed{}); flexible: in any form, the last one "
    "that looks like an answer; exact: as strict, but nothing else may stand beside it."
)
_EXPONENT = re.compile(r"[-+]?\d+(\.\d+)?[eE][-+]?\d+")


class Section(BaseModel):
    """One section of params.yaml. An unknown key or a wrong type is an error; nothing changes after parsing."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _read_exponents_as_numbers(cls, values: Any) -> Any:
        """YAML 1.1, which Snakemake reads, takes 1e-4 for a text; YAML 1.2, which DVC reads, for a number."""
        if not isinstance(values, dict):
            return values
        numbers = {name for name, field in cls.model_fields.items() if field.annotation is float}
        return {k: float(v) if k in numbers and _is_exponent(v) else v for k, v in values.items()}


def _is_exponent(value: Any) -> bool:
    return isinstance(value, str) and _EXPONENT.fullmatch(value) is not None
