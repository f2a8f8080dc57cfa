"""Parts of the backends whose trainer is another project's program."""
