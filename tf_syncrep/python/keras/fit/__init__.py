"""fit, evaluate and predict under ParameterServerStrategy.

`api` has the three functions, and `loop` their loops over what `scheduling` schedules.
`execution` is what a worker runs in one call, and `step` what is traced for one step.
Batches come from `inputs` and `data`, and `passes` reads them to their end. `metrics`
adds up what executions return, and `arrivals` waits for it. `install` puts the three
functions in front of a model's own methods.
"""
