"""Raw rows from the Hugging Face hub, through `datasets`, at a pinned commit and no other."""

import tempfile
from pathlib import Path
from typing import Any

from dagrpo.files import sha256_of
from dagrpo.params.data import Data
from dagrpo.tasks.source import Raw, Row, Source, require_rows, to_row


def read_hub(source: Source, params: Data) -> Raw:
    """Every row and every file's sha256. ValueError says what could not be read, and how to do without the hub."""
    limits = {"train": params.max_train, "test": params.max_test}
    splits, urls = _load(source)
    rows: dict[str, list[Row]] = {}
    for split, name in source.hub_splits.items():
        where = f"{source.repository}@{source.revision[:12]} ({name})"
        if name not in splits:
            raise ValueError(f"{where} is not a split of the data set, which has {', '.join(splits)}.")
        rows[split] = [to_row(source, where, number, row) for number, row in enumerate(splits[name], start=1)]
        require_rows(source, split, where, len(rows[split]), limits[split])
    return Raw(rows=rows, files=_files(source, urls), origin="hub", revision=source.revision)


def _load(source: Source) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """The rows of each split, and the hf:// address of each file they came from.

    `datasets` prepares them in an empty folder of its own. In its shared cache it would, when the hub does not answer,
    take whichever commit it finds there.
    """
    import datasets  # 1 to 4 s, and only the hub needs it
    import httpx

    try:
        with tempfile.TemporaryDirectory() as cache:
            builder = datasets.load_dataset_builder(
                source.repository, source.configuration, revision=source.revision, cache_dir=cache
            )
            builder.download_and_prepare()
            splits = {name: split.to_list() for name, split in builder.as_dataset().items()}
            return splits, [str(url) for files in builder.config.data_files.values() for url in files]
    except (OSError, ValueError, httpx.HTTPError, datasets.exceptions.DatasetsError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ValueError(
            f"{source.repository} at commit {source.revision} cannot be read from the hub ({reason}): check the network, "
            "or set data.mirror to a folder with a local copy."
        ) from error


def _files(source: Source, urls: list[str]) -> dict[str, str]:
    """The sha256 of each downloaded file; refuses one that is not of the pinned commit."""
    from huggingface_hub import hf_hub_download

    prefix = f"hf://datasets/{source.repository}@{source.revision}/"
    files = {}
    for url in sorted(urls):
        if not url.startswith(prefix):
            raise ValueError(
                f"{url} is not a file of {source.repository} at commit {source.revision}: remove what shadows it."
            )
        name = url.removeprefix(prefix)
        path = hf_hub_download(source.repository, name, repo_type="dataset", revision=source.revision)  # already there
        files[name] = sha256_of(Path(path))
    return files
