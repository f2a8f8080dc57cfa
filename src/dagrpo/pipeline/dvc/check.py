"""Check of params.yaml and its raw files, for DVC.

By itself DVC looks at nothing but the keys of its stages. It runs this after any change of the file, of the raw files, or of their links.
"""

import sys
from pathlib import Path

import yaml

from dagrpo.config.places import add_own_code
from dagrpo.config.schema import Params
from dagrpo.core.errors import UserError
from dagrpo.pipeline.dvc.code import raw_file_at, write_links
from dagrpo.pipeline.dvc.file import CHECK_STAGE, PATH, REMEDY
from dagrpo.pipeline.dvc.private import keep_other_experiments
from dagrpo.pipeline.override_runs import PARAMS
from dagrpo.pipeline.raw_inputs import parameter_with
from dagrpo.pipeline.validation import parse_with_tasks
from dagrpo.utils.files import read_text
from dagrpo.utils.yaml_text import read_yaml


def main() -> None:
    """Check params.yaml against the schema, the tasks and the raw files that are here. Raises SystemExit with what to change."""
    add_own_code()
    try:
        params = parse_with_tasks(read_yaml(PARAMS))
        write_links(params)
        _require_raw_files(params)
    except UserError as error:
        sys.exit(str(error))
    keep_other_experiments()


def _require_raw_files(params: Params) -> None:
    """Raise UserError for a raw file that dvc.yaml names and that is not here."""
    for output in yaml.safe_load(read_text(PATH, REMEDY))["stages"][CHECK_STAGE].get("outs", ()):
        path = next(iter(output))
        if not Path(path).exists():
            file = raw_file_at(path)
            key = parameter_with(file, params)
            raise UserError(
                f"{file}, which {key} names, is missing: put it there (`dvc pull`, if DVC has it), or correct {key}. What was made "
                "from it stays; without the file `dagrpo generate` takes it out of dvc.yaml."
            )


if __name__ == "__main__":
    main()
