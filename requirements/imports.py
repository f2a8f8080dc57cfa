"""Imports of what was installed: the last step of `make setup`."""

import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from signal import Signals

# What a machine or a Python can be wrong for: compiled code. sglang and mlflow, themselves Python alone, would take ten seconds more.
NEEDED = (
    "torch",
    "numpy",
    "scipy.linalg",
    "pandas",
    "pyarrow",
    "tokenizers",
    "safetensors",
    "zmq",
    "PIL.Image",
    "pygit2",
    "psutil",
)
OF_A_GPU = "sgl_kernel"  # SGLang's, in the set for a GPU
IMPORTS = """
import importlib, sys
for name in sys.argv[1:]:
    print(name, file=sys.stderr, flush=True)
    importlib.import_module(name)
"""


def main(packages: Sequence[str]) -> None:
    """Import the packages in a new process. Raises SystemExit with a message that names the first that fails."""
    done = subprocess.run([sys.executable, "-c", IMPORTS, *packages], stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        lines = done.stderr.splitlines()
        name = next((line for line in reversed(lines) if line in packages), packages[0])
        last = lines[-1].strip() if lines else f"exit code {done.returncode}"
        reason = f"ended by {Signals(-done.returncode).name}" if done.returncode < 0 else last
        raise SystemExit(
            f"{name} is installed, but Python {platform.python_version()} of {sys.base_prefix} cannot import it ({reason}). Put "
            "another python3 of 3.11 to 3.13 first on PATH, then `rm -rf .venv` and `make setup`; if that ends alike, this machine "
            f"lacks what {name} needs."
        )


if __name__ == "__main__":
    main([*NEEDED, *([OF_A_GPU] if find_spec(OF_A_GPU) else ())])
