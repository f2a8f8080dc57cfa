"""Attempts at a few problems, by verl's worker of agent loops and a scripted policy.

`python scripted_attempts.py JOB`, with the Python of verl or of its stand-in.
"""

import asyncio
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def attempts(python: str, run: Any, folder: Path, scripts: Mapping[int, Sequence[str]], path: str) -> dict[int, Any]:
    """Return for each row of the train split with a script what verl gets: its sequences, and what the policy was asked.

    `path`: PYTHONPATH of verl.
    """
    from dagrpo.utils.files import read_json, write_json
    from dagrpo_foreign.files import write_inputs
    from dagrpo_verl import composition, running
    from dagrpo_verl.mapping import configuration

    inputs = write_inputs(run, folder)
    files = running.files_of(run, inputs, folder)
    keys = configuration(run, {}, run.seed, files, several_turns=running.has_turns(run, inputs))
    job = {
        "composition": composition.__file__,
        "overrides": [running.override(name, value) for name, value in keys.items()],
        "model": str(files.model),
        "scripts": [[index, turns] for index, turns in scripts.items()],
        "reply": str(folder / "attempts.reply.json"),
    }
    write_json(folder / "job.json", job)
    environment = {**os.environ, "PYTHONPATH": path}
    command = [python, "-P", __file__, str(folder / "job.json")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(read_json(folder / "attempts.reply.json"))


def _run(job: Mapping[str, Any]) -> list[Any]:
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer

    own = runpy.run_path(job["composition"])
    config = own["composed"](job["overrides"])
    OmegaConf.resolve(config)
    policy = own["ScriptedPolicy"](AutoTokenizer.from_pretrained(job["model"]), [turns for _, turns in job["scripts"]])
    rows = [{"index": index, "raw_prompt": []} for index, _ in job["scripts"]]
    found = asyncio.run(own["attempt"](config, policy, rows))
    return [
        [
            row["index"],
            {"asked": [_plain(each) for each in asked], "sequences": [_sequence(each) for each in sequences]},
        ]
        for row, asked, sequences in zip(rows, policy.asked, found, strict=True)
    ]


def _plain(asked: Mapping[str, Any]) -> dict[str, Any]:
    pictures = [list(each.size) for each in asked["image_data"] or []]
    return {"prompt": asked["prompt_ids"], "sampling": dict(asked["sampling_params"]), "pictures": pictures}


def _sequence(output: Any) -> dict[str, Any]:
    names = ("prompt_ids", "response_ids", "response_mask", "response_logprobs", "reward_score", "num_turns")
    return {
        **{name: getattr(output, name) for name in names},
        "info": output.extra_fields["reward_extra_info"],
        "pictures": len(output.multi_modal_data.get("images", [])),
        "versions": [output.extra_fields[f"{end}_global_steps"] for end in ("min", "max")],
    }


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    Path(given["reply"]).write_text(json.dumps(_run(given)))
