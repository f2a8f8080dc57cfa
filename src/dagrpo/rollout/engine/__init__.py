"""The SGLang engine: its server, its client, and how weights reach it."""
