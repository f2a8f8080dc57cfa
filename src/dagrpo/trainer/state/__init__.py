"""Resumable states and records of finished steps."""
