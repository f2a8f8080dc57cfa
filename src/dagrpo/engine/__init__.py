"""SGLang engine: its server, its client and its weight sync."""
