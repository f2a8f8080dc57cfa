"""Chat formats of model families, by the library renderers."""
