"""Server, client and weight transports of SGLang."""
