"""A schemathesis serializer for newline-delimited JSON."""

import json

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def ndjson(context, value):
    """Sends a generated value that is not a text as a single line."""
    if isinstance(value, str):
        return value.encode()
    return (json.dumps(value) + "\n").encode()
