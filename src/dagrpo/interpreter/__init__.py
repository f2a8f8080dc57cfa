"""Programs that the policy writes, run elsewhere: in our own sandboxes or by a Sandbox Fusion server."""
