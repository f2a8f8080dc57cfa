"""What may not be left when a run has been broken, started again, and has ended."""

import re
import sqlite3
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import psutil
from tests.pipeline.snakemake import clones

from dagrpo.utils.files import read_object
from dagrpo_mlflow.attempt import FOLDER

SECONDS_TO_END = 180.0  # a stage has a minute to end, and the machine may have other work
MEMORY = Path("/dev/shm")
OURS = re.compile(rf"(?:{MEMORY}/|{re.escape(tempfile.gettempdir())}/dagrpo-)[\w.-]+")
TOPS = ("data", "models", "results")


class Witness:
    """Looks at a run while it works: which files outside the clone it uses."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._outside: set[Path] = set()

    def look(self) -> None:
        """Once a moment."""
        for process in clones.processes(self._folder):
            try:
                # Not psutil's memory_maps, which asks the kernel to count every page: half a core, once a second.
                used = [Path(f"/proc/{process.pid}/{told}").read_text() for told in ("cmdline", "environ", "maps")]
            except (psutil.Error, OSError):  # it has just ended
                continue
            self._outside |= {Path(found) for word in used for found in OURS.findall(word)}

    def left_outside(self) -> list[str]:
        """What the run has used in memory or in the folder for temporary files, and not removed."""
        return [f"{path} is left" for path in sorted(self._outside) if path.exists()]

    def lost(self, *, had_nothing_to_do: bool = False) -> list[str]:
        """Executions that MLflow does not hold, or holds as running.

        A run that had nothing to do records nothing, as after a Ctrl-C between the end of the last stage and that of the
        workflow: what is missing is then recorded by the command.
        """
        if had_nothing_to_do:
            clones.run(self._folder, "dagrpo", "tracking", "rebuild")
        keys = {
            path: read_object(path)["key"] for top in TOPS for path in (self._folder / top).rglob("*provenance.json")
        }
        database = self._folder / "mlflow.db"
        if not database.is_file():
            return [f"MLflow has no database, and {len(keys)} executions"] if keys else []
        with closing(sqlite3.connect(database)) as connection:
            held = {key for (key,) in connection.execute("select value from tags where key = 'key'")}
            running = connection.execute("select name from runs where status = 'RUNNING'").fetchall()
        lost = sorted(str(path.relative_to(self._folder)) for path, key in keys.items() if key not in held)
        return [
            *(f"MLflow has lost {name}" for name in lost),
            *(f"MLflow shows {name} as RUNNING" for (name,) in running),
            *(f"{note.name} is left" for note in (self._folder / FOLDER).glob("*.json")),
        ]


def orphans(folder: Path, seconds: float = SECONDS_TO_END) -> list[str]:
    """Processes that are alive so many seconds after the run in a clone has ended. They are killed."""
    deadline = time.monotonic() + seconds
    while (left := clones.processes(folder)) and time.monotonic() < deadline:
        time.sleep(0.2)
    lines = []
    for process in left:
        try:
            lines.append(f"still alive: {' '.join(process.cmdline())[:200]}")
            process.kill()
        except psutil.Error:  # it has just ended
            continue
    return lines


def other_bytes(expected: Mapping[str, str], folder: Path) -> list[str]:
    """Outputs that differ from those of an undisturbed run, or are missing; files of work that has ended."""
    made = clones.outputs(folder)
    parts = [path for top in TOPS for path in (folder / top).rglob(".*") if path.suffix in {".part", ".old", ".kept"}]
    return [
        *(f"{name} is missing" for name in expected if name not in made),
        *(f"{name} has other bytes" for name, digest in expected.items() if made.get(name, digest) != digest),
        *(f"{path.relative_to(folder)} is left" for path in parts),
    ]
