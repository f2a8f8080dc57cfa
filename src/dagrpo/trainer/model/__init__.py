"""The policy: layers, head, optimizer and sharding."""
