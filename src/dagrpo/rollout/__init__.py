"""Completions from SGLang: a server of its own, tokens in, tokens out."""
