"""What is published is searched for secrets, in nested columns too."""

import pyarrow as pa
import pytest

from dagrpo.cli.publish.repositories import _texts
from dagrpo.core.redaction import redacted

SECRET = "hf_abcdefghijklmnopqrstuvwxyz012345"


@pytest.mark.parametrize("value", [SECRET, [SECRET], [{"name": "search", "result": SECRET}], {"result": SECRET}])
def test_a_secret_is_seen_wherever_a_column_holds_it(value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    column = pa.chunked_array([pa.array([value])])
    assert any(redacted(text) != text for text in _texts(column))
