"""fit, evaluate and predict under ParameterServerStrategy.

`api` has the three functions, and `loop` their loops over the executions that
`scheduling` schedules. `execution` is what a worker runs in one call, and `step` traces
one step of it. Batches come from `inputs` and `data`; `adapters` makes datasets of
other data, `reading_order` tells whether workers read the same at the same time, and
`passes` reads batches to their end. `metrics` adds up what executions return, `packing`
makes one tensor of it, and `arrivals` waits for it. `building` makes variables
beforehand, and `checks` refuses what cannot be trained. `sizes` chooses how many steps
an execution has, and `ends` finds out when data is over. `exact_state` holds counters
and seeds, and `joining` puts predictions together. `progress`, `silence` and
`loss_warning` tell users how it goes. `install` puts the three functions in front of a
model's own methods, which `own_loop` is for where there are no parameter servers.
"""
