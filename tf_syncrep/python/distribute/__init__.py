"""Clusters: TF_CONFIG, the local launcher and the task server.

`cluster` reads TF_CONFIG, and `threads` the number of threads. `launcher` runs a script
on a `local_cluster` as `launch_options` say: each task is a `task_process`, whose
`task_output` becomes lines with a prefix in `output`, `ports` reserves its address, and
`supervision` leaves no process behind. `task` is one task of a scheduler's cluster,
`server` serves it, `script` is what it runs, `readiness` asks whether a server answers,
and `memory` keeps what a server frees. `tls` checks the files for the `tunnels` between
tasks, and `allow` says who may connect; `proxies` keeps calls between tasks away from
the network's. `errors` has what the command tells its user in one line.

No module here imports TensorFlow when it is imported itself, so that the command line
answers at once; only a running server imports it.
"""
