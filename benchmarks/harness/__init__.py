"""What all benchmarks share: declared axes, timing in rounds, checks, tables."""
