"""Checkpoints: each task writes its own variables while training goes on.

`contents` says what a checkpoint holds and `directory` which files are one. `engine`
writes and restores them, by `function_calls` where functions run at once. A `run` knows
when one is due, and why one was not written; `progress` notes how far training got.
`arguments` checks what users pass, `keyed_tables` holds tables whose rows are found by
keys, and `queues` the states of work queues.
"""
