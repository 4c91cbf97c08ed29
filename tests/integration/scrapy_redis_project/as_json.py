"""A ``SCHEDULER_SERIALIZER`` without pickle."""

from __future__ import annotations

import json


def loads(text):
    fields = json.loads(text)
    return {**fields, "body": fields["body"].encode()}


def dumps(fields):
    return json.dumps({**fields, "body": fields["body"].decode(), "headers": {}})
