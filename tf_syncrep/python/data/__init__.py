"""Data of several workers."""
