"""Creates payments over HTTP. The code doesn't handle duplicates: the layer in template.yaml does."""

import json
import uuid


def handler(event, context):
    order = json.loads(event["body"])
    payment = {"payment_id": str(uuid.uuid4()), "order_id": order["order_id"], "amount_cents": order["amount_cents"]}
    # Charge the card here.
    print(f"creating payment {payment['payment_id']}")
    return {"statusCode": 201, "headers": {"content-type": "application/json"}, "body": json.dumps(payment)}
