"""Program that checks a command line by Megatron-LM's own code.

`python command_check.py JOB`, with Megatron-LM's Python, on a CPU: its parser and `validate_args` read the arguments, as the first of all
ranks; our agent draws a prompt, renders it with the tokenizer, and has one response graded. Writes to the file `reply` what it has
found: `{"error": ...}` if Megatron-LM refuses.
"""

import asyncio
import contextlib
import io
import json
import os
import runpy
import socket
import sys
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

VERSION = "0.20.0"
PORTS = (8294, 41521)  # of its text server and of its coordinator: no argument sets them
START = runpy.run_path(str(Path(__file__).with_name("start.py")))


class Refused(Exception):
    """Refusal of a run, with the reason."""


def require_ports() -> None:
    """Raise Refused if a port is taken: a second run of Megatron-LM would sample with the first one's model."""
    for port in PORTS:
        with socket.socket() as found:
            if found.connect_ex(("127.0.0.1", port)) == 0:
                raise Refused(f"the port {port} is taken, by another run of Megatron-LM perhaps: let that end first")


def parsed(words: list[str], devices: int) -> Any:
    """Return the arguments of the command line. Raises Refused with the words of the parser or of `validate_args`."""
    import torch

    if not torch.cuda.is_available():  # what validate_args asks of a GPU
        torch.cuda.get_device_capability = lambda *_: (9, 0)
        torch.cuda.get_device_properties = lambda *_: SimpleNamespace(major=9, minor=0, total_memory=80 << 30)  # type: ignore[assignment]
        torch.cuda.device_count = lambda: devices
        torch.cuda.current_device = lambda: 0
    from megatron.inference.utils import add_inference_args
    from megatron.training.arguments import parse_args, validate_args

    sys.argv = ["train_rl.py", *words]
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            arguments = parse_args(extra_args_provider=add_inference_args)
    except SystemExit:
        raise Refused(errors.getvalue().strip().splitlines()[-1]) from None
    try:
        validate_args(arguments, {})
    except (AssertionError, ValueError, RuntimeError, NotImplementedError) as error:
        raise Refused(str(error) or f"{type(error).__name__} in validate_args, see the log") from error
    return arguments


def graded(job: dict[str, Any]) -> float:
    """Return the reward of the response `0` to the first prompt. Raises Refused if our process cannot grade it."""
    from transformers import AutoTokenizer

    path = Path(job["job"])
    agent = START["register"](json.loads(path.read_text())["agent"]).Agent(str(path))
    tokenizer = AutoTokenizer.from_pretrained(job["tokenizer"], trust_remote_code=False)

    async def ask() -> float:
        messages, golden = await agent.get_prompt(validation=False)
        prompt = tokenizer.apply_chat_template(
            [message.model_dump() for message in messages], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        tokens = [*prompt, *tokenizer.encode("0", add_special_tokens=False)]
        response = SimpleNamespace(token_ids=tokens, prompt_length=len(prompt), finish_reason="stop")
        return float(await agent.get_trajectory_reward([response], messages, golden))

    try:
        return asyncio.run(ask())
    except RuntimeError as error:
        raise Refused(str(error)) from error


def checked(job: dict[str, Any]) -> dict[str, Any]:
    """Return the findings of all checks. Raises Refused."""
    if not hasattr(typing, "override"):  # Python 3.11
        from typing_extensions import override

        setattr(typing, "override", override)  # noqa: B010
    ranks = {"WORLD_SIZE": str(job["processes"]), "RANK": "0", "LOCAL_RANK": "0"}
    os.environ.update(job["environment"] | ranks)
    try:
        START["enter"](job["source"])
        from megatron.core.package_info import __shortversion__, __version__

        START["limit"](1)
        START["listen_at"]("")
        START["follow"](None)  # what start.py replaces is there
    except (ImportError, AttributeError, OSError) as error:
        raise Refused(f"{sys.executable} cannot import it from {job['source']} ({error})") from error
    if __shortversion__ != VERSION:
        raise Refused(f"it is {__version__}, and these arguments are of {VERSION}")
    require_ports()
    arguments = parsed(job["arguments"], job["devices"])
    parallel = {"data_parallel": arguments.data_parallel_size, "sequences": arguments.global_batch_size}
    return {"version": __version__, **parallel, "graded": graded(job)}


def main(path: Path) -> None:
    """Write the reply to a job."""
    job = json.loads(path.read_text())
    try:
        reply = checked(job)
    except Refused as refused:
        reply = {"error": str(refused)}
    Path(job["reply"]).write_text(json.dumps(reply))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
