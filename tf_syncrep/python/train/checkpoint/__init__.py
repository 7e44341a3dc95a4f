"""Checkpoints in sessions: the hook, and what of a graph it saves."""
