"""Python imports this when it starts, where this folder is on PYTHONPATH.

So it is in processes that tests start with `programs.environment`, and that do not come
from the fork server. A sixth of what an import of TensorFlow takes is the search for
garbage.
"""

import garbage  # noqa: F401
