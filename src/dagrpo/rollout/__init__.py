"""Completions from SGLang: its server, its client, and the seeds that make sampling repeatable."""
