"""DVC's side of the pipeline: dvc.yaml, dvc.lock and the cache."""
