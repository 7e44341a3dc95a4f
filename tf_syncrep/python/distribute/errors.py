"""What the command tells its user in one line."""


class UsageError(Exception):
    """An argument, TF_CONFIG or the machine does not allow what is asked for."""
