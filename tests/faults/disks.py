"""A run on a disk that becomes full: a small file system in memory, which a user's namespace may mount.

As a script, in such a namespace: `python disks.py CLONE BYTES COMMAND...` runs the command in a copy of the clone with so
many bytes free, then again with plenty, and prints both ends and the digests of the outputs as JSON.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.faults import said
from tests.faults.tally import Fault
from tests.namespaces import NAMESPACE
from tests.pipeline.snakemake import clones

PLENTY = 1 << 30


def cause(clone: Path, free: int, command: tuple[str, ...], expected: Mapping[str, str]) -> Fault:
    """Run a command in a copy of a clone with so many bytes free, then with plenty."""
    script = (sys.executable, "-m", "tests.faults.disks", str(clone), str(free), *command)
    root = Path(__file__).parents[2]
    done = subprocess.run((*NAMESPACE, *script), cwd=root, capture_output=True, text=True, timeout=1800)
    what = f"{free:,} bytes free: {' '.join(command)}"
    if done.returncode != 0:
        return Fault(kind="full disk", what=what, differences=(f"the harness failed: {done.stderr[-500:]}",))
    return Fault(kind="full disk", what=what, differences=tuple(_differences(json.loads(done.stdout), expected)))


def _differences(told: Mapping[str, Any], expected: Mapping[str, str]) -> list[str]:
    made: Mapping[str, str] = told["outputs"]
    return [
        *(told["faults"] if told["first"] != 0 else []),
        *([f"with room again: {told['sentence']}"] if told["second"] != 0 else []),
        *(f"{name} differs" for name, digest in expected.items() if made.get(name) != digest),
    ]


def main(clone: Path, free: int, command: tuple[str, ...]) -> None:
    """In the namespace: the file system is mounted over the clone's own folder's sibling, and is gone with the process."""
    disk = clone.with_name(f"{clone.name}_disk")
    disk.mkdir(exist_ok=True)
    _mount(disk, PLENTY)
    folder = clones.copied(clone, disk / "clone")
    _mount(disk, _used(disk) + free, "remount,")
    (folder / "output.txt").unlink(missing_ok=True)
    said_at = clone.with_name(f"{clone.name}_said.txt")  # the screen is not on the disk that is full
    with said_at.open("w") as output:
        first = subprocess.run(command, cwd=folder, env=clones.environment(folder), stdout=output, stderr=output)
    text = said_at.read_text()
    faults = said.faults_of(said.sentence_in(folder, text), text)
    _mount(disk, PLENTY, "remount,")
    second, output_text = said.run(folder, command)
    told = {
        "first": first.returncode,
        "second": second,
        "faults": faults,
        "sentence": said.sentence_in(folder, output_text),
        "outputs": clones.outputs(folder),
    }
    print(json.dumps(told))


def _mount(disk: Path, size: int, how: str = "") -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"{how}size={size}", "none", str(disk)], check=True)


def _used(disk: Path) -> int:
    return shutil.disk_usage(disk).used


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), tuple(sys.argv[3:]))
