"""The parts of synchronous training that v1 sessions and Keras share.

`gate_placement` chooses the task of the gate, and `gate_stats` reads its counters.
`gradients`, `gradient_checks`, `gradient_transfers`, `contribution` and
`gradient_accumulators` take a gradient from a worker to the mean of its round.
`messages` packs several values into one tensor, `arguments` checks what users pass,
`docstrings` puts text into those of several classes, `session_loop` is a queue runner,
`deadline` calls functions that may never return, and `said_waits` are waits that say
for what they wait.
"""
