"""Puts the .pth file beside the package, at the top of site-packages, where the interpreter looks for it.

pyproject.toml cannot say this: a package's data can only lie inside the package.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PTH = "dagrpo_sglang_cpu.pth"


class BuildWithPth(build_py):
    """build_py that copies the .pth file to the root of the wheel."""

    def run(self) -> None:
        super().run()
        self.copy_file(str(Path("src", PTH)), str(Path(self.build_lib, PTH)), preserve_mode=False)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), str(Path(self.build_lib, PTH))]


setup(cmdclass={"build_py": BuildWithPth})
