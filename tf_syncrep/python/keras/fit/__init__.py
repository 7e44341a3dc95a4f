"""fit, evaluate and predict under ParameterServerStrategy.

- `api` has the three functions, and `install` puts them in front of a model's own
  methods.
- `checks` refuses what cannot be trained, and `building` makes variables beforehand.
- `inputs` makes `batches` of what is given: by `adapters`, or on workers by
  `worker_datasets` in `chunks`; `reading_order` tells whether these read the same.
- `loop` has the epochs. `scheduling` keeps executions under way, as many as `sizes` and
  `ends` say, and takes their `results`; `silence` says that none come.
- `execution` is what a worker runs in one call, of `step`s. `metrics` adds up what it
  returns, `exact_state` and `counted_last` keep counts and seeds right, and `joining`
  puts predictions together.
- `progress` tells users how it goes.
"""
