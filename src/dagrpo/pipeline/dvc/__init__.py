"""The files dvc.yaml and dvc.lock, and the cache of DVC."""
