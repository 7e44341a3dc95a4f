"""Checkpoints in sessions: servers write their own variables while training goes on."""
