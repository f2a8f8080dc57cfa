"""A namespace in which a test may mount small file systems that nobody else sees, where the machine allows users such."""

import shutil
import subprocess

import pytest

NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")


def require_mounts() -> None:
    """Skip the test where there is no such namespace."""
    mount = (*NAMESPACE, "mount", "-t", "tmpfs", "none", "/mnt")
    if shutil.which("unshare") is None or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount a small file system of their own (unshare --user --mount)")
