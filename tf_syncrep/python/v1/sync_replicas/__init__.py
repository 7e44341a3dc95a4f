"""Synchronous training in sessions."""
