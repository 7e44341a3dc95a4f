"""Checkpoints: each task writes its own variables while training goes on.

`contents` says what a checkpoint holds and `directory` which files are one. `engine`
writes and restores them, in graphs of v1 through `session_calls`. `progress` and
`failures` note how far training got, and why a checkpoint was not written. `arguments`
checks what users pass, `keyed_tables` holds tables whose rows are found by keys, and
`queues` the states of work queues.
"""
