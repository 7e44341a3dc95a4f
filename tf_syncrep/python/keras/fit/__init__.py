"""fit, evaluate and predict under ParameterServerStrategy.

`api` has the three functions, and `loop` their loops over the executions that
`scheduling` schedules. `execution` is what a worker runs in one call, and `step` traces
one step of it. Batches come from `inputs` and `data`, and `passes` reads them to their
end. `metrics` adds up what executions return, and `arrivals` waits for it. `install`
puts the three functions in front of a model's own methods.
"""
