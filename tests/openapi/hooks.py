"""What schemathesis needs to know of newline-delimited JSON."""

import json

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def ndjson(context, value):
    """A generated value that is no text goes out as the one document of a single line."""
    if isinstance(value, str):
        return value.encode()
    return (json.dumps(value) + "\n").encode()
