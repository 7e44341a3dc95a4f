"""Rounds on parameter servers: gate, accumulators, the update."""
