"""`python -m tf_syncrep` is `tf-syncrep`."""

import sys

from tf_syncrep.python.cli import main

if __name__ == "__main__":
    sys.exit(main())
