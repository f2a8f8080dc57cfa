"""Programs of the policy, run in our sandbox or by Sandbox Fusion."""
