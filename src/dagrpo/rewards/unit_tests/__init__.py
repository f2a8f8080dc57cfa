"""Programs of the policy, run against tests; the verdict falls outside the process in which they run."""
