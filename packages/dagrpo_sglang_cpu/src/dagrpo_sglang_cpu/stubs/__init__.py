"""Stubs: one module per package, with `fill(module)`."""
