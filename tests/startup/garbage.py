"""How often Python looks for garbage in processes of tests: rarely, once this is there.

A trace of a model makes some hundred thousand objects, nearly all of which stay for
long. By default Python looks for cycles after each 700 of them, and now and then among
all objects of TensorFlow and Keras: a fifth of the CPU time of these tests.
"""

import gc

_THRESHOLD = 50_000


def collect_rarely() -> None:
    """Leaves out what there is now, which stays, and looks for more rarely."""
    gc.freeze()
    gc.set_threshold(_THRESHOLD, 20, 50)


collect_rarely()
