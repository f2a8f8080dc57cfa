"""What the schema says of parameters that it refuses."""

from typing import Any

import pytest

from dagrpo.config.schema import parse


def refused(values: dict[str, Any]) -> str:
    """The sentences."""
    with pytest.raises(ValueError, match="params") as caught:
        parse(values)
    return str(caught.value)
