# A REST API's function that sends its own CORS headers, as such a function must. It doesn't know of the layer.
import json
import os
import time

PAGES = os.environ["PAGES"].split(",")
payments = 0


def handler(event, context):
    global payments
    sent = {name.lower(): value for name, value in (event["headers"] or {}).items()}
    headers = {"Vary": "Origin"}
    if sent.get("origin") in PAGES:
        headers["Access-Control-Allow-Origin"] = sent["origin"]
        headers["Access-Control-Allow-Credentials"] = "true"
    if event["httpMethod"] == "OPTIONS":
        headers["Access-Control-Allow-Methods"] = "POST"
        headers["Access-Control-Allow-Headers"] = "content-type,idempotency-key"
        return {"statusCode": 204, "headers": headers}
    order = json.loads(event["body"])
    time.sleep(order.get("seconds", 0))
    payments += 1
    headers |= {
        "Content-Type": "application/json",
        "Access-Control-Expose-Headers": "X-Receipt",
        "X-Receipt": f"receipt-{payments}",
    }
    return {"statusCode": 201, "headers": headers, "body": json.dumps({"paid": order["amount"]})}
