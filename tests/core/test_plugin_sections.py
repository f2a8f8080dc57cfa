"""Sections of plug-ins, by whatever a file has for their names."""

import pytest
from pydantic import ValidationError

from dagrpo.rollout.config import Rollout


def test_a_name_that_is_a_number_is_refused_in_a_sentence() -> None:
    with pytest.raises(
        ValidationError, match=r"rollout\.tools is \{5: \{\}\}: write a mapping from names to parameters"
    ):
        Rollout.model_validate({"tools": {5: {}}})
