"""Advantage estimators, one small file each."""
