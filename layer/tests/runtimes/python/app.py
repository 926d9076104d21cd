"""The function under test, in Python. See ../README.md."""

import base64
import json
import os
import signal
import time

LEDGER = os.environ["LEDGER"]

if os.environ.get("INIT") == "error":
    raise RuntimeError("the function can't start")
if os.environ.get("INIT") == "exit":
    os._exit(7)


class Declined(Exception):
    pass


class Unavailable(Exception):
    pass


ERRORS = {"Declined": Declined, "Unavailable": Unavailable}


def note(what, key, run):
    """Appends a line in one write, which a kill can't halve or undo."""
    ledger = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(ledger, f"{what} {key} {run}\n".encode())
    os.close(ledger)


def runs(key):
    with open(LEDGER, encoding="utf-8") as ledger:
        return sum(line.startswith(f"run {key} ") for line in ledger)


def play(order, run, context):
    key = order["id"]
    note("run", key, run)
    answer = {"id": key, "run": run}
    for step in order.get("do", "effect").split():
        if step.startswith("first-"):
            if runs(key) > 1:
                continue
            step = step.removeprefix("first-")
        verb, *given = step.split(":")
        if verb == "effect":
            note("effect", key, run)
        elif verb == "sleep":
            time.sleep(int(given[0]) / 1000)
        elif verb == "error":
            raise ERRORS[given[0]]("x" * int(given[1]) if len(given) > 1 else "as the event asks")
        elif verb == "exit":
            os._exit(int(given[0]))
        elif verb == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif verb == "big":
            answer["pad"] = "x" * int(given[0])
        elif verb == "context":
            answer["context"] = about(context)
        elif verb == "see":
            answer["see"] = order.get(given[0])
        elif verb in ("text", "status"):
            answer[verb] = int(given[0]) if given else True
        else:
            raise ValueError(f"unknown step: {step}")
    return answer


def about(context):
    client = context.client_context
    return {
        "request_id": context.aws_request_id,
        "arn": context.invoked_function_arn,
        "tenant": getattr(context, "tenant_id", None),
        "trace": os.environ.get("_X_AMZN_TRACE_ID"),
        "client": client.custom if client else None,
        "identity": context.identity.cognito_identity_id if context.identity else None,
        "has_time_left": context.get_remaining_time_in_millis() > 0,
    }


def handler(event, context):
    run = f"{context.aws_request_id}/{os.getpid()}"
    if "Records" in event:
        return batch(event["Records"], run, context)
    if "requestContext" in event:
        body = event.get("body") or "{}"
        if event.get("isBase64Encoded"):
            body = base64.b64decode(body)
        return http(play(json.loads(body), run, context))
    return play(event, run, context)


def http(answer):
    status = answer.pop("status", 201)
    if answer.pop("text", False):
        return {"statusCode": status, "headers": {"content-type": "text/plain"}, "body": "run " + answer["run"]}
    return {"statusCode": status, "headers": {"content-type": "application/json"}, "body": json.dumps(answer)}


def batch(records, run, context):
    failures = []
    for record in records:
        is_ordered = record.get("eventSource") != "aws:sqs" or "MessageGroupId" in record.get("attributes", {})
        name, order = opened(record)
        if is_ordered and failures:
            failures.append(name)
            continue
        try:
            play(order, run, context)
        except Exception:
            if "WHOLE" in os.environ:
                raise
            failures.append(name)
    if "WHOLE" in os.environ:
        return None
    return {"batchItemFailures": [{"itemIdentifier": name} for name in failures]}


def opened(record):
    """Returns the `itemIdentifier` of the record in a partial failure, and the order in the record's payload."""
    if "kinesis" in record:
        return record["kinesis"]["sequenceNumber"], json.loads(base64.b64decode(record["kinesis"]["data"]))
    if "dynamodb" in record:
        image = record["dynamodb"]["NewImage"]
        return record["dynamodb"]["SequenceNumber"], {name: value["S"] for name, value in image.items()}
    return record["messageId"], json.loads(record["body"])
