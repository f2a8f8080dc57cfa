"""What each stubbed package looks like: one module per package, with `fill(module)`."""
