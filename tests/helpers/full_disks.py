"""A disk that is full, for this process alone."""

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def full_disk(most: int = 4096) -> Iterator[None]:
    """Files of this process cannot grow beyond some bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
