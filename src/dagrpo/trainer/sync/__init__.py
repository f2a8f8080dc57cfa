"""Weight sync into the engine, with digests."""
