"""What a ClusterCoordinator logs of a closure's error, in few lines.

It logs the error where it catches it and again before it raises it, each time with the
places in the program where the ops were built: hundreds of lines for a missing file.
The exception has these places as well.
"""

import logging
import re

# Private: the texts of `cluster_coordinator.py`, and how errors name places (checked
# with TensorFlow 2.15.1 and 2.21.0). Other texts stay as they are.
_OF_COORDINATOR = re.compile(r"processing closure: |closures due to error |Remote func")
_PLACES = re.compile(
    r"\n*Detected at node .* defined at \(most recent call last\):"
    r"(?:\n(?:  File .*|<stack traces unavailable>)?(?=\n|$))*"
)


class _WithoutPlaces(logging.Filter):
    """Takes the places in the program out of a coordinator's messages."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Changes a record; lets all pass."""
        message = record.getMessage()
        if _OF_COORDINATOR.search(message):
            record.msg, record.args = _PLACES.sub("", message), None
        return True


_without_places = _WithoutPlaces()


def shorten_errors_of_closures() -> None:
    """Makes coordinators log errors of closures in few lines, from now on."""
    # A second time, this does nothing.
    logging.getLogger("tensorflow").addFilter(_without_places)
