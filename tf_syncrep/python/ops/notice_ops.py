"""Notice: that a process was sent SIGTERM, before it ends.

Others wait for a task's notice by ops, and a process listens by itself with functions
of the library, from any thread. The Docs of the ops in `cc/ops` say what they do and
take: each is a function of this module, by its name.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from tf_syncrep.python.ops import op_library

#: The exit status that says "to be continued": 128 + SIGTERM, as of a process that did
#: not hear of its notice. To schedulers it was ended, and has not succeeded.
TO_BE_CONTINUED = 143
#: The variable of the environment with the seconds between SIGTERM and SIGKILL.
GRACE_VARIABLE = "TF_SYNCREP_GRACE"


def begin() -> None:
    """Listens until `end` is called as often.

    A SIGTERM does nothing meanwhile, unless it is the second.
    """
    _library().tf_syncrep_begin_notice()


def is_given() -> bool:
    """Returns whether this process was sent SIGTERM, and somebody still listens."""
    return bool(_library().tf_syncrep_has_notice())


def end() -> bool:
    """Listens no more; returns whether this process was sent SIGTERM by now."""
    return bool(_library().tf_syncrep_end_notice())


@functools.cache
def _library() -> Any:
    op_library.load()
    return ctypes.CDLL(op_library.library_path())


def __getattr__(name: str) -> Any:
    return op_library.function(name, ("await_notice", "had_notice", "note_work"))
