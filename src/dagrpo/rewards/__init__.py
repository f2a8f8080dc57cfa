"""Rewards: answers extracted from texts, verified and priced."""
