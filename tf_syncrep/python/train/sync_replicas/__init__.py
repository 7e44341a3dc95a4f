"""Synchronous training in sessions: the optimizer, its hook, its queue runner."""
