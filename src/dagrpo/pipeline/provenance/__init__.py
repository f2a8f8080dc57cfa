"""Provenance: which stage made which file out of which."""
