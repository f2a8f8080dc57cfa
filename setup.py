"""Put the repository's files that a study needs into the wheel, as dagrpo/project: src/dagrpo/config/places.py finds them."""

import shutil
from pathlib import Path

from setuptools import setup
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
)
WORKFLOW = (
    "workflow/envs/*",
    "workflow/report/*",
    "workflow/rules/*",
    "workflow/scripts/*.py",
)


class WithProject(build_py):
    """Builder of a wheel: the packages below src, and these files. An editable install has the repository itself."""

    def run(self) -> None:
        """Build the packages, then copy the files."""
        super().run()
        project = Path(self.build_lib, "dagrpo/project")
        shutil.rmtree(project, ignore_errors=True)
        found = [] if self.editable_mode else [path for name in (*FILES, *WORKFLOW) for path in Path().glob(name)]
        for path in found:
            if path.is_file():
                (project / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, project / path)


setup(cmdclass={"build_py": WithProject})
