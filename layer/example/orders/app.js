// Ships the orders from a queue. The code handles neither duplicates nor partial batches: the layer in template.yaml
// prevents duplicates, and hands over one message at a time.
'use strict'

exports.handler = async event => {
  for (const record of event.Records) {
    const order = JSON.parse(record.body)
    if (!(order.quantity > 0)) throw new Error(`order ${order.order_id} has no quantity`)
    // Call the carrier here.
    console.log(`shipping order ${order.order_id}`)
  }
}
