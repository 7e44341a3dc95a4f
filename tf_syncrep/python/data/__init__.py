"""Data that several workers share."""
