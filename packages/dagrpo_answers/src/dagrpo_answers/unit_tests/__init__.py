"""Programs of the policy, run against tests."""
