// The two functions of layer/example behind the layer, as a CDK app: `cdk synth --app 'node example.js'`. LAYER_ZIP names
// the layer's zip for arm64.

'use strict';

const path = require('node:path');
const { App, Duration, Stack } = require('aws-cdk-lib');
const lambda = require('aws-cdk-lib/aws-lambda');
const { SqsEventSource } = require('aws-cdk-lib/aws-lambda-event-sources');
const sns = require('aws-cdk-lib/aws-sns');
const sqs = require('aws-cdk-lib/aws-sqs');
const { Idempotency } = require('./index.js');

const code = (folder) => lambda.Code.fromAsset(path.join(__dirname, '../example', folder));

const app = new App();
const stack = new Stack(app, 'LayerExample');
const idempotency = new Idempotency(stack, 'Idempotency', {
  zip: process.env.LAYER_ZIP,
  alarmTopic: new sns.Topic(stack, 'Alarms', { enforceSSL: true }),
});

const payments = new lambda.Function(stack, 'Payments', {
  functionName: 'layer-example-payments',
  runtime: lambda.Runtime.PYTHON_3_13,
  architecture: lambda.Architecture.ARM_64,
  handler: 'app.handler',
  code: code('payments'),
  timeout: Duration.seconds(10),
});
idempotency.protect(payments, { event: 'http', key: 'header', on_missing_key: 'refuse' });

const deadLetters = new sqs.Queue(stack, 'DeadLetters', { retentionPeriod: Duration.days(14), enforceSSL: true });
const queue = new sqs.Queue(stack, 'Queue', {
  visibilityTimeout: Duration.seconds(180),
  deadLetterQueue: { queue: deadLetters, maxReceiveCount: 5 },
  enforceSSL: true,
});
const orders = new lambda.Function(stack, 'Orders', {
  functionName: 'layer-example-orders',
  runtime: lambda.Runtime.NODEJS_22_X,
  architecture: lambda.Architecture.ARM_64,
  handler: 'app.handler',
  code: code('orders'),
  timeout: Duration.seconds(30),
});
orders.addEventSource(new SqsEventSource(queue, { batchSize: 10, reportBatchItemFailures: true }));
idempotency.protect(orders, { event: 'sqs', key: '/order_id', batch: 'each', retention: '18d' });

app.synth();

module.exports = { stack };
