"""What was installed can be imported, or is named with its fault."""

from pathlib import Path

import pytest
from requirements.imports import main


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import ctypes; ctypes.CDLL('libnot_there.so.13')", r"libnot_there\.so\.13: cannot open shared object file"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "ended by SIGILL"),
        ("def f(:", "SyntaxError"),
    ],
)
def test_a_package_that_cannot_be_imported_is_named_with_its_fault_and_a_remedy(
    code: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "damaged.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(
        SystemExit, match=rf"damaged is installed, but Python 3.*{reason}.*`rm -rf .venv` and `make setup`"
    ):
        main(["json", "damaged", "csv"])


def test_packages_that_can_be_imported_are_passed() -> None:
    main(["json", "csv"])
