// Ships the orders of a queue. It knows nothing of idempotency, nor of partial batches: the layer in template.yaml
// hands it one message at a time.
'use strict'

exports.handler = async event => {
  for (const record of event.Records) {
    const order = JSON.parse(record.body)
    if (!(order.quantity > 0)) throw new Error(`order ${order.order_id} has no quantity`)
    // The place to call the carrier.
    console.log(`shipping order ${order.order_id}`)
  }
}
