"""Check of the whole params.yaml, for DVC.

By itself DVC looks at nothing but the keys of its stages, and runs this after any change of the file.
"""

import sys

from dagrpo.config.places import add_own_code
from dagrpo.core.errors import UserError
from dagrpo.pipeline.override_runs import PARAMS
from dagrpo.pipeline.validation import parse_with_tasks
from dagrpo.utils.yaml_text import read_yaml


def main() -> None:
    """Check params.yaml against the schema and the tasks. Raises SystemExit with what to change."""
    add_own_code()
    try:
        parse_with_tasks(read_yaml(PARAMS))
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
