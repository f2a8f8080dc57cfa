"""Put the files that a study needs into wheels, as dagrpo/project."""

import shutil
from pathlib import Path

from setuptools.command.build_py import build_py

FILES = (
    "Snakefile",
    ".gitignore",
    ".dvcignore",
    ".dvc/config",
    ".dvc/.gitignore",
    ".dvc/plots/*",
    "presets/**/*",
    "profiles/**/*",
    "workflow/*/*",
)


class WithProject(build_py):
    """Builder of a wheel: the packages below src, and these files. An editable install has the repository itself."""

    def run(self) -> None:
        """Build the packages, then copy the files."""
        super().run()
        project = Path(self.build_lib, "dagrpo/project")
        shutil.rmtree(project, ignore_errors=True)
        for path in [] if self.editable_mode else _found():
            (project / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, project / path)

    def get_source_files(self) -> list[str]:
        """Return what a source distribution holds."""
        return [*super().get_source_files(), *map(str, _found())]


def _found() -> list[Path]:
    return [path for name in FILES for path in Path().glob(name) if path.is_file() and path.suffix != ".pyc"]
