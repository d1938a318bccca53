"""Shipped for tests of ours and of others: builders, strategies, conformance checks and fault scenarios."""
