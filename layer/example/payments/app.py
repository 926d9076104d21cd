"""Creates payments over HTTP. It knows nothing of idempotency: the layer in template.yaml does."""

import json
import uuid


def handler(event, context):
    order = json.loads(event["body"])
    payment = {"payment_id": str(uuid.uuid4()), "order_id": order["order_id"], "amount_cents": order["amount_cents"]}
    # The place to charge the card.
    print(f"creating payment {payment['payment_id']}")
    return {"statusCode": 201, "headers": {"content-type": "application/json"}, "body": json.dumps(payment)}
