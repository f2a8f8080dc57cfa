"""Raw files from the Hugging Face hub, at a pinned commit and no other.

`datasets` says which files a split consists of; it neither downloads nor prepares them, which would take hours and
gigabytes for the large data sets.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from dagrpo.errors import UserError
from dagrpo.tasks.source import Place, RawFile, Source


def hub_place(source: Source) -> Place:
    """The files of each split, downloaded when their turn comes. UserError says what could not be read, and how to do without."""
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
    """The hub's splits, each with the hf:// addresses of its files.

    `datasets` gets an empty folder of its own. In its shared cache it would, when the hub does not answer, take whichever
    commit it finds there.
    """
    with _faults_in_a_sentence(source):
        import datasets  # 1 to 4 s, and only the hub needs it

        with tempfile.TemporaryDirectory() as cache:
            builder = datasets.load_dataset_builder(
                source.repository, source.configuration, revision=source.revision, cache_dir=cache
            )
            return {str(split): [str(url) for url in urls] for split, urls in builder.config.data_files.items()}


def _file(source: Source, url: str) -> RawFile:
    """One file, refused when it is not of the pinned commit."""
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

    with _faults_in_a_sentence(source):
        return Path(hf_hub_download(source.repository, name, repo_type="dataset", revision=source.revision))


@contextmanager
def _faults_in_a_sentence(source: Source) -> Iterator[None]:
    import datasets
    import httpx

    try:
        yield
    except (OSError, ValueError, httpx.HTTPError, datasets.exceptions.DatasetsError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise UserError(
            f"{source.repository} at commit {source.revision} cannot be read from the hub ({reason}): check the network, "
            "or set data.mirror to a folder with a local copy."
        ) from error
