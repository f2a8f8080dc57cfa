"""Functions that dagrpo calls while an experiment runs: `dagrpo.pipeline.tracker`."""

from dagrpo_mlflow.attempt import follow_jobs, leave_database_to_the_head, noted
from dagrpo_mlflow.sync import record_what_is_new

__all__ = ["follow_jobs", "leave_database_to_the_head", "noted", "record_what_is_new"]
