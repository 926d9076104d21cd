// Synthesises the example, and checks the construct. scripts/check-deployment runs it, and cfn-lint on the result.

'use strict';

const assert = require('node:assert');
const fs = require('node:fs');
const path = require('node:path');
const { test } = require('node:test');
const { App, Stack } = require('aws-cdk-lib');
const { Annotations, Match, Template } = require('aws-cdk-lib/assertions');
const lambda = require('aws-cdk-lib/aws-lambda');
const { Idempotency } = require('./index.js');
const { stack } = require('./example.js');

const template = Template.fromStack(stack);

test('example has layer, variables and permissions', () => {
  template.resourceCountIs('AWS::DynamoDB::Table', 1);
  template.hasResource('AWS::DynamoDB::Table', {
    DeletionPolicy: 'Retain',
    Properties: {
      KeySchema: [{ AttributeName: 'id', KeyType: 'HASH' }],
      TimeToLiveSpecification: { AttributeName: 'expires_at', Enabled: true },
    },
  });
  for (const [name, settings] of [
    ['layer-example-payments', { IDEMPOTENCY_EVENT: 'http', IDEMPOTENCY_KEY: 'header', IDEMPOTENCY_ON_MISSING_KEY: 'refuse' }],
    ['layer-example-orders', { IDEMPOTENCY_EVENT: 'sqs', IDEMPOTENCY_KEY: '/order_id', IDEMPOTENCY_BATCH: 'each', IDEMPOTENCY_RETENTION: '18d' }],
  ]) {
    const Variables = { AWS_LAMBDA_EXEC_WRAPPER: '/opt/idempotency-wrapper', IDEMPOTENCY_TABLE: Match.anyValue(), ...settings };
    template.hasResourceProperties('AWS::Lambda::Function', { FunctionName: name, Layers: [Match.anyValue()], Environment: { Variables } });
  }
  const Action = ['dynamodb:GetItem', 'dynamodb:PutItem', 'dynamodb:UpdateItem'];
  template.resourcePropertiesCountIs('AWS::IAM::Policy', {
    PolicyDocument: Match.objectLike({ Statement: Match.arrayWith([Match.objectLike({ Action, Effect: 'Allow' })]) }),
  }, 2);
});

test('every alarm is on a known metric', () => {
  const code = ['../../src/metrics.rs', '../src/telemetry.rs'].map((file) => fs.readFileSync(path.join(__dirname, file), 'utf8')).join();
  const alarms = Object.values(template.findResources('AWS::CloudWatch::Alarm'));
  assert.equal(alarms.length, 16);
  for (const { Properties: { MetricName, Namespace, AlarmActions } } of alarms) {
    assert.ok(code.includes(`"${MetricName}"`), `${MetricName} isn't a metric`);
    assert.equal(Namespace, 'LambdaIdempotency');
    assert.equal(AlarmActions.length, 1);
  }
});

function fresh(properties) {
  const other = new Stack(new App(), 'Other');
  const idempotency = new Idempotency(other, 'Idempotency', { layer: lambda.LayerVersion.fromLayerVersionArn(other, 'Layer', 'arn:aws:lambda:eu-central-1:123456789012:layer:idempotency:1') });
  const target = new lambda.Function(other, 'Target', {
    runtime: lambda.Runtime.PYTHON_3_13,
    architecture: lambda.Architecture.ARM_64,
    handler: 'app.handler',
    code: lambda.Code.fromInline('0'),
    ...properties,
  });
  return { other, idempotency, target };
}

test('mistakes fail the synthesis', () => {
  const { other, idempotency, target } = fresh({ architecture: lambda.Architecture.X86_64 });
  assert.throws(() => idempotency.protect(target, { key: '/id' }), /Target runs on x86_64, and the layer is for arm64/);
  assert.throws(() => idempotency.protect(target, {}), /Target needs `key`/);
  assert.throws(() => new Idempotency(other, 'Second', {}), /set either `zip`/);
});

test('generated names and bare runtimes are warned about', () => {
  const { other, idempotency, target } = fresh({ runtime: lambda.Runtime.PROVIDED_AL2023, code: lambda.Code.fromAsset(__dirname) });
  idempotency.protect(target, { key: ['/customer', '/order'] });
  Annotations.fromStack(other).hasWarning('*', Match.stringLikeRegexp('Set `functionName`'));
  Annotations.fromStack(other).hasWarning('*', Match.stringLikeRegexp('Deploy a bootstrap'));
  const { Variables } = Object.values(Template.fromStack(other).findResources('AWS::Lambda::Function'))[0].Properties.Environment;
  assert.deepEqual([Variables.IDEMPOTENCY_KEY, Variables.AWS_LAMBDA_EXEC_WRAPPER], ['/customer,/order', undefined]);
});
