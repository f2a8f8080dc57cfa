"""An experiment's policy for notebooks: `dagrpo.load_policy("arithmetic_tiny")` returns a transformers model.

Training and evaluation load theirs by themselves. It does not sample as SGLang does.
"""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dagrpo.api.results import runs_of
from dagrpo.core.errors import UserError, nearest
from dagrpo.pipeline.dag import stage_of
from dagrpo.pipeline.declaration import POLICIES
from dagrpo.utils.manifest import MANIFEST

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Which = Literal["trained", "base"]


def load_policy(
    source: str | Path, *, which: Which = "trained", dtype: "torch.dtype | None" = None, root: str | Path = "."
) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """Load the model, in eval mode on the CPU, and its tokenizer.

    `source` is an experiment with one seed (`"arithmetic_tiny"`), a run (`"arithmetic_tiny/seed_0"`, or its folder), or the
    folder of a checkpoint in the Hugging Face layout. `which` chooses between a run's policy after training and before it;
    a checkpoint's folder has only one. `dtype`: that of the file, if not given. `root` is the project's folder.

    Weights are read from safetensors after a comparison with the folder's manifest, if it has one. Nothing is downloaded, and code
    beside a model is never run. Raises UserError if the run or its policy does not exist, or the folder is not such a checkpoint.
    """
    from dagrpo.checkpoints.convert import HUGGINGFACE
    from dagrpo.checkpoints.manifest import verify
    from dagrpo.checkpoints.modules import build_model
    from dagrpo.checkpoints.source import open_checkpoint
    from dagrpo.checkpoints.tokenizers import load_tokenizer

    folder = _folder(source, which, Path(root))
    opened = open_checkpoint(folder)
    if opened.format != HUGGINGFACE:
        raise UserError(
            f"{folder} is a {opened.format} checkpoint, and transformers loads the Hugging Face layout: "
            f"`dagrpo convert {folder} NEW_FOLDER --to hf` makes one."
        )
    if (folder / MANIFEST).is_file():
        verify(folder)
    types = Counter(spec.dtype for spec in opened.tensors.specs.values())
    weights = {name: opened.tensors.read(name) for name in opened.tensors.specs}
    return build_model(folder, weights, dtype or types.most_common(1)[0][0]), load_tokenizer(folder)


def _folder(source: str | Path, which: Which, root: Path) -> Path:
    """Return the folder of the checkpoint that the arguments select."""
    if which not in POLICIES:
        raise UserError(f"There is no policy `{which}`: ask for {' or '.join(reversed(POLICIES))}.")
    run = _run(source, root)
    if run is None:
        return Path(source)
    folder = run / POLICIES[which]
    if not (folder / MANIFEST).is_file():
        experiment, stage = run.parents[1].name, stage_of(f"results/e/runs/seed_0/{folder.name}/{MANIFEST}")
        raise UserError(f"{folder} is not there: run {experiment} to the end of its stage {stage}.")
    return folder


def _run(source: str | Path, root: Path) -> Path | None:
    """Return the run named by its experiment or by its folder; None for a checkpoint's folder."""
    experiment, _, seed = str(source).partition("/")
    folder, results = Path(source), root / "results"
    if not (results / experiment / "runs").is_dir() or not experiment:
        if not folder.is_dir():
            hint = nearest(experiment, [path.parent.name for path in results.glob("*/runs")])
            raise UserError(f"`{source}` is neither a folder nor an experiment in {results}: {hint}.")
        return folder if folder.parent.name == "runs" else None
    runs = {run.name: run for run in runs_of(experiment, root)}
    if seed not in runs and (seed or len(runs) > 1):
        raise UserError(f"{source} is no single run: name one of {', '.join(f'{experiment}/{each}' for each in runs)}.")
    return runs[seed or next(iter(runs))]
