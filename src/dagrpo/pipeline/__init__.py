"""Execution of a stage: declaration, code, arguments, devices, retries, errors."""
