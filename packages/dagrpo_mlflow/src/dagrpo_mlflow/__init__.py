"""Records of stage executions: runs in MLflow, lineage by content.

Cannot change an output.
"""

import os

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when MLflow is imported, here or in a child process
