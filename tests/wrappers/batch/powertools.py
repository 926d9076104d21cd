"""Processes a Kafka event with Powertools for AWS Lambda (Python), and prints what it sees and answers, as JSON.

    python3 powertools.py < EVENT

A record fails if its value contains `fail`.
"""

import json
import os
import sys

os.environ["POWERTOOLS_TRACE_DISABLED"] = "1"

from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType

seen = []


def handle(record):
    value = None if record.get("value") is None else record.decoded_value.decode()
    key = None if record.decoded_key is None else list(record.decoded_key)
    headers = sorted((name, list(value)) for name, value in record.decoded_headers.items())
    seen.append([record.topic, record.partition, record.offset, key, value, headers])
    if "fail" in (value or ""):
        raise ValueError("fail")


event = json.load(sys.stdin)
records = [record for records in event["records"].values() for record in records]
processor = BatchProcessor(event_type=EventType.Kafka, raise_on_entire_batch_failure=False)
with processor(records, handle):
    processor.process()
json.dump({"seen": seen, "answer": processor.response()}, sys.stdout)
