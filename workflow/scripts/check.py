"""Checks params.yaml. DVC runs it after any change there: by itself it looks at nothing but the keys of its stages."""

import sys
from pathlib import Path

from own_code import use_code_of

if __name__ == "__main__":
    use_code_of(Path(__file__).resolve().parents[2])
    from dagrpo.core.errors import UserError
    from dagrpo.pipeline.override_runs import PARAMS
    from dagrpo.pipeline.validation import parse_with_tasks
    from dagrpo.utils.yaml_text import read_yaml

    try:
        parse_with_tasks(read_yaml(PARAMS))
    except UserError as error:
        sys.exit(str(error))
