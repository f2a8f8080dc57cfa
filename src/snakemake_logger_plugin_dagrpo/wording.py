"""Selection and wording of Snakemake's messages for the terminal."""

import re
import shlex
from collections.abc import Sequence

FAILED = "At least one job did not complete successfully."
STOPPING = "Terminating processes on user request"
REFUSALS = frozenset({"Refusal", "UserError"})  # exceptions whose message is for the user
NOISE = (
    "Assuming unrestricted shared filesystem usage",
    "Building DAG of jobs",
    "Cannot restore ",
    "Cleaning up SLURM log files",
    "Complete log(s):",
    "Config file params.yaml is extended",
    "Conda environments: ignored",
    "Elapsed time:",
    "Exiting because a job execution failed",
    "Group jobs: inactive",
    "No SLURM account given, trying to guess",
    "No account was given, not able to get a SLURM account",
    "Removing output files of failed job",
    "Select jobs to execute",
    "Shutting down, this might take some time",
    "Singularity containers: ignored",
    "Trying to restart job",
    "Some jobs were triggered by provenance information",
    "Rules with provenance triggered jobs",
    "Unable to guess SLURM account",
    "Using shell:",
    "Will exit after finishing currently running jobs",
)
_PLACE = re.compile(r'^ *File ".*", line \d+.*$')
_IN_INPUT_FUNCTION = re.compile(r"^ *(?:Refusal|UserError):\s+(.+?)\nWildcards:", re.MULTILINE | re.DOTALL)
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.\w+)+=")


def is_noise(text: str) -> bool:
    """Return True for a message on which the user cannot act."""
    return not text or text.startswith(NOISE)


def is_the_shells(text: str) -> bool:
    """Return True if an error only repeats the command line of a failed job: the panel shows why it failed."""
    return "CalledProcessError" in text.partition("\nCommand ")[0] or text.endswith(FAILED)


def message_text(text: str) -> str:
    """Return a message of Snakemake's without the parts that apply to no run of this profile."""
    if text.startswith("Error: Directory cannot be locked"):  # of a dry run, which continues
        return "A run is at work here: what is planned now may be done meanwhile."
    return text.replace("\n    (check individual jobs above for details)", "").rstrip()


def error_text(exception: str, text: str, arguments: Sequence[str]) -> str:
    """Return Snakemake's error as shown: a refusal as its message alone. `arguments` are Snakemake's own."""
    if exception in REFUSALS:
        return sentence_in(text)
    if exception == "InputFunctionException" and (found := _IN_INPUT_FUNCTION.search(text)):
        return "\n".join(line.strip() for line in found.group(1).splitlines())
    if "Invalid config definition" in text:
        return _about_config(text, arguments)
    return text.rstrip()


def sentence_in(text: str) -> str:
    """Return a refusal without the lines of files that Snakemake puts around it."""
    head, _, rest = text.partition("\n")
    body = rest if head.endswith(":") and head.startswith(tuple(REFUSALS)) else text
    return "\n".join(line for line in body.splitlines() if not _PLACE.match(line)).strip()


def _about_config(text: str, arguments: Sequence[str]) -> str:
    dotted = [argument for argument in arguments if _DOTTED.match(argument)]
    if not dotted:
        return text.strip().splitlines()[-1].removeprefix("ValueError: ")
    name, _, value = dotted[0].partition("=")
    works = shlex.quote(f"{name.replace('.', '__')}={value}")
    return f"--config {dotted[0]}: Snakemake takes no dots in a name; write --config {works}."
