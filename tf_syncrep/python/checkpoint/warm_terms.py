"""What a user allows a warm start to do."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tf_syncrep.python.base.arguments import as_python
from tf_syncrep.python.checkpoint.matching import Rename, check_rename


@dataclasses.dataclass(frozen=True)
class Terms:
    """The public arguments beside the source."""

    rename: Rename = None
    skip: Any = ()
    truncate: bool = False
    pad: bool = False

    def __post_init__(self):
        check_rename(self.rename)
        for name in ("truncate", "pad"):
            value = as_python(getattr(self, name))
            if not isinstance(value, bool):
                raise ValueError(f"`{name}` must be a bool. Received: {name}={value!r}")
            object.__setattr__(self, name, value)


def arguments_of(given: Any) -> dict[str, Any] | None:
    """Returns the argument `warm_start` of those who write checkpoints, by name."""
    if given is None:
        return None
    arguments = dict(given) if isinstance(given, Mapping) else {"source": given}
    known = ["source", *(x.name for x in dataclasses.fields(Terms))]
    if "source" not in arguments or not set(arguments) <= set(known):
        raise ValueError(
            "`warm_start` must be a source, or a dict with `source` and other arguments"
            f" of that function, {known}. Received: warm_start={given!r}"
        )
    Terms(**{name: x for name, x in arguments.items() if name != "source"})
    return arguments
