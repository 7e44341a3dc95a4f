"""The ops of the work queue: who reads which item of the data.

A queue hands out items, which are numbers from 0, each once an epoch, to readers of
workers. It is on the task on which `work_queue` ran, and the other ops find it by its
handle. An item is done when its reader asks for the next one. If a reader is dead,
because its worker was started again or its lease has ended, its item is handed out
again. The Docs of the ops in `cc/ops` say what they do and take: each is a function of
this module, by its name.
"""

from __future__ import annotations

from typing import Any

from tf_syncrep.python.ops import op_library

#: No limit to the epochs whose items are handed out.
NO_LIMIT = -1
#: The ticket of a reader that begins.
NO_TICKET = 0


def __getattr__(name: str) -> Any:
    return op_library.function(name, ("work_queue",))
