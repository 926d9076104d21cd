// The function under test, in Node. See ../README.md.
'use strict'

const fs = require('fs')

const LEDGER = process.env.LEDGER

if (process.env.INIT === 'error') throw new Error("the function can't start")
if (process.env.INIT === 'exit') process.exit(7)

class Declined extends Error {
  name = 'Declined'
}

class Unavailable extends Error {
  name = 'Unavailable'
}

const ERRORS = { Declined, Unavailable }

// Appends a line in one write, which a kill can't halve or undo.
const note = (what, key, run) => fs.appendFileSync(LEDGER, `${what} ${key} ${run}\n`)

const runs = key => fs.readFileSync(LEDGER, 'utf8').split('\n').filter(line => line.startsWith(`run ${key} `)).length

const wait = ms => new Promise(resolve => setTimeout(resolve, ms))

async function play (order, run, context) {
  const key = order.id
  note('run', key, run)
  const answer = { id: key, run }
  for (let step of (order.do ?? 'effect').split(' ')) {
    if (step.startsWith('first-')) {
      if (runs(key) > 1) continue
      step = step.slice('first-'.length)
    }
    const [verb, ...given] = step.split(':')
    switch (verb) {
      case 'effect': note('effect', key, run); break
      case 'sleep': await wait(Number(given[0])); break
      case 'error': throw new ERRORS[given[0]](given.length > 1 ? 'x'.repeat(Number(given[1])) : 'as the event asks')
      case 'exit': process.exit(Number(given[0])); break
      case 'kill': process.kill(process.pid, 'SIGKILL'); await wait(60000); break
      case 'big': answer.pad = 'x'.repeat(Number(given[0])); break
      case 'context': answer.context = about(context); break
      case 'see': answer.see = order[given[0]] ?? null; break
      case 'text':
      case 'status': answer[verb] = given.length > 0 ? Number(given[0]) : true; break
      default: throw new Error(`unknown step: ${step}`)
    }
  }
  return answer
}

const about = context => ({
  request_id: context.awsRequestId,
  arn: context.invokedFunctionArn,
  tenant: context.tenantId ?? null,
  trace: process.env._X_AMZN_TRACE_ID ?? null,
  client: (context.clientContext?.custom ?? context.clientContext?.Custom) ?? null,
  identity: context.identity?.cognitoIdentityId ?? null,
  has_time_left: context.getRemainingTimeInMillis() > 0
})

exports.handler = async (event, context) => {
  const run = `${context.awsRequestId}/${process.pid}`
  if (event.Records) return batch(event.Records, run, context)
  if (event.requestContext) {
    const body = event.isBase64Encoded ? Buffer.from(event.body, 'base64').toString() : event.body
    return http(await play(JSON.parse(body || '{}'), run, context))
  }
  return play(event, run, context)
}

// The same function, with its response streamed in chunks.
exports.stream = globalThis.awslambda?.streamifyResponse(async (event, stream, context) => {
  stream.setContentType('application/json')
  const answer = JSON.stringify(await play(event, `${context.awsRequestId}/${process.pid}`, context))
  for (let from = 0; from < answer.length; from += 65536) stream.write(answer.slice(from, from + 65536))
  stream.end()
})

function http (answer) {
  const { status = 201, text, ...rest } = answer
  const kind = text ? 'text/plain' : 'application/json'
  return { statusCode: status, headers: { 'content-type': kind }, body: text ? `run ${answer.run}` : JSON.stringify(rest) }
}

async function batch (records, run, context) {
  const failures = []
  for (const record of records) {
    const isOrdered = record.eventSource !== 'aws:sqs' || record.attributes?.MessageGroupId !== undefined
    const [name, order] = opened(record)
    if (isOrdered && failures.length > 0) {
      failures.push(name)
      continue
    }
    try {
      await play(order, run, context)
    } catch (error) {
      if (process.env.WHOLE) throw error
      failures.push(name)
    }
  }
  return process.env.WHOLE ? null : { batchItemFailures: failures.map(name => ({ itemIdentifier: name })) }
}

// Returns the `itemIdentifier` of the record in a partial failure, and the order in the record's payload.
function opened (record) {
  if (record.kinesis) {
    return [record.kinesis.sequenceNumber, JSON.parse(Buffer.from(record.kinesis.data, 'base64').toString())]
  }
  if (record.dynamodb) {
    const image = Object.entries(record.dynamodb.NewImage).map(([name, value]) => [name, value.S])
    return [record.dynamodb.SequenceNumber, Object.fromEntries(image)]
  }
  return [record.messageId, JSON.parse(record.body)]
}
