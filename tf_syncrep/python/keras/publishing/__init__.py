"""Publishes models while they are trained."""
