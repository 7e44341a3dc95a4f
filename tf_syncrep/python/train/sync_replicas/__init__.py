"""Synchronous training in sessions.

The class is in `optimizer`, and its hook in `hook`. `graph` builds the ops of workers
and chief, with those of an update in `update`. `chief_queue_runner` runs updates, and
`departures` tells the gate of workers whose sessions end. `client` names a process to
it. `session_errors` are errors of lost tasks, and `information` logs where v1 scripts
look.
"""
