"""Publishes models of sessions while they are trained."""
