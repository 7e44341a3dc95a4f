"""Embedding layers whose tables are on parameter servers."""
