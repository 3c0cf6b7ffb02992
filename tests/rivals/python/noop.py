"""A handler that does nothing."""


def noop(payload):
    pass
