"""Checkpoints in sessions: servers write their own variables while training goes on.

The hook is in `saver_hook`. `contents` finds what it saves, which is what a Saver of
the graph would save, and `session_calls` runs the ops.
"""
