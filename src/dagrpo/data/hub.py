"""Raw files from the Hugging Face hub at a pinned commit.

`datasets` says which files a split consists of; it neither downloads nor prepares them, which would take hours and
gigabytes for the large data sets.
"""

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dagrpo.core.errors import UserError
from dagrpo.data.source import Place, RawFile, Source

if TYPE_CHECKING:
    from dagrpo.utils.hub import Wanted


def hub_place(source: Source) -> Place:
    """Return the files of each split, downloaded when their turn comes. UserError says what could not be read, and how to do without."""
    urls = _urls(source)
    files = {}
    for split, name in source.hub_splits.items():
        if name not in urls:
            where = f"{source.repository}@{source.revision[:12]} ({name})"
            raise UserError(
                f"{where} is not a split of the data set, which has {', '.join(urls)}: use data.mirror instead."
            )
        files[split] = [_file(source, url) for url in urls[name]]
    return Place(files=files, origin="hub", revision=source.revision)


def _urls(source: Source) -> dict[str, list[str]]:
    """Return the hub's splits, each with the hf:// addresses of its files.

    `datasets` gets an empty folder. In its shared cache it would, when the hub does not answer, use whichever commit it finds.
    """
    from dagrpo.utils.hub import readable_hub_errors, require_answer

    require_answer(_wanted(source))
    import datasets  # 1 to 4 s, and only a hub that answers needs it

    with (
        readable_hub_errors(_wanted(source), datasets.exceptions.DatasetsError),
        tempfile.TemporaryDirectory() as cache,
    ):
        builder = datasets.load_dataset_builder(
            source.repository, source.configuration, revision=source.revision, cache_dir=cache
        )
        return {str(split): [str(url) for url in urls] for split, urls in builder.config.data_files.items()}


def _file(source: Source, url: str) -> RawFile:
    """Return one file, refused when it is not of the pinned commit."""
    prefix = f"hf://datasets/{source.repository}@{source.revision}/"
    if not url.startswith(prefix):
        raise UserError(
            f"{url} is not a file of {source.repository} at commit {source.revision}: remove what shadows it."
        )
    name = url.removeprefix(prefix)
    label = f"{source.repository}@{source.revision[:12]}/{name}"
    return RawFile(name=name, label=label, fetch=partial(_fetch, source, name))


def _fetch(source: Source, name: str) -> Path:
    from huggingface_hub import hf_hub_download

    from dagrpo.utils.hub import readable_hub_errors

    with readable_hub_errors(_wanted(source)):
        return Path(hf_hub_download(source.repository, name, repo_type="dataset", revision=source.revision))


def _wanted(source: Source) -> "Wanted":
    from dagrpo.utils.hub import Wanted

    return Wanted(
        repository=source.repository,
        revision=source.revision,
        kind="dataset",
        correct="choose another task",
        instead="set data.mirror to a folder with a local copy",
    )
