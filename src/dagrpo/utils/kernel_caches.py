"""Folder of compiled kernels, for this user alone."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from dagrpo.core.errors import UserError
from dagrpo.utils.tempdirs import is_own_folder


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of compiled kernels: DAGRPO_CACHE, else dagrpo in XDG_CACHE_HOME or ~/.cache."""
    if named := environment.get("DAGRPO_CACHE"):
        return Path(named).expanduser().absolute()
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dagrpo"


def kernels_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder below it that kernels are compiled into, created if it is missing. Raises as `own_folder` does."""
    return own_folder(own_folder(cache_folder(environment).resolve()) / "kernels")


def torch_caches(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that put kernels of Inductor and Triton below the cache folder, without those already set.

    The folder is created, unless both are set. Inductor's own folder is below the one for temporary files, which is lost, and where
    another user may create it first. Raises UserError if another user may write to the cache folder, and OSError if it cannot be
    created.
    """
    folders = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
    missing = {name: folder for name, folder in folders.items() if name not in environment}
    if not missing:
        return {}
    kernels = kernels_folder(environment)
    return {name: str(kernels / folder) for name, folder in missing.items()}


def own_folder(folder: Path) -> Path:
    """Return the folder, which is created for this user alone if it is missing.

    Raises UserError if another user may have put files there, as they would be run.
    """
    with suppress(FileExistsError):
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
    if not is_own_folder(folder):
        raise UserError(
            f"{folder} keeps compilers and kernels that servers run, but it is not a folder that only you may write to: `chmod 700` it "
            "if all in it is yours, else remove it or set DAGRPO_CACHE to a folder of your own."
        )
    return folder
