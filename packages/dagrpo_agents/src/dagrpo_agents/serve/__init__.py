"""A run's policies behind a page and OpenAI endpoints."""
