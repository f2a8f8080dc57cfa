"""Put the .pth file beside the package, at the top of site-packages.

The interpreter looks for it there. pyproject.toml cannot do this: a package's data can only lie inside the package.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from setuptools import setup  # type: ignore[import-untyped]
from setuptools.command.build_py import build_py  # type: ignore[import-untyped]

PTH = "dagrpo_sglang_cpu.pth"


class BuildWithPth(build_py):  # type: ignore[misc]
    """build_py that copies the .pth file to the root of the wheel."""

    def run(self) -> None:
        super().run()
        self.copy_file(str(Path("src", PTH)), str(Path(self.build_lib, PTH)), preserve_mode=False)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), str(Path(self.build_lib, PTH))]


with (
    TemporaryDirectory() as folder
):  # not build/ beside this file, where mypy and a later build would find stale copies
    setup(cmdclass={"build_py": BuildWithPth}, options={"build": {"build_base": folder}})
