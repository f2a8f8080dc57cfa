"""Sections `training`, `sft` and `runtime` of params.yaml."""
