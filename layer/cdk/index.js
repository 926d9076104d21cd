// The layer as a CDK construct: the layer, its table of records, and for each function the permissions, variables and
// alarms.

'use strict';

const { Annotations, Duration, RemovalPolicy, Stack } = require('aws-cdk-lib');
const cloudwatch = require('aws-cdk-lib/aws-cloudwatch');
const { SnsAction } = require('aws-cdk-lib/aws-cloudwatch-actions');
const dynamodb = require('aws-cdk-lib/aws-dynamodb');
const lambda = require('aws-cdk-lib/aws-lambda');
const { Construct } = require('constructs');

/** The actions that the layer needs on its table. */
const ACTIONS = ['dynamodb:GetItem', 'dynamodb:PutItem', 'dynamodb:UpdateItem'];

/** Lambda runs wrapper scripts only in these runtimes. */
const WITH_WRAPPERS = ['NODEJS', 'PYTHON', 'JAVA', 'DOTNET_CORE', 'RUBY'].map((family) => lambda.RuntimeFamily[family]);

/** An alarm on the first count of a metric. */
const FIRST = { evaluationPeriods: 1 };
/** An alarm on three of fifteen minutes, since light traffic rarely has requests in three consecutive minutes. */
const REPEATED = { evaluationPeriods: 15, datapointsToAlarm: 3 };

/** The alarms of each function: when they go off, and what to do then. */
const ALARMS = {
  idempotency_fenced: [FIRST, 'A run lost its claim, and its effect may have happened twice. Check whether the timeout is too short.'
    + ' `idempotency inspect` shows the record that the log names.'],
  idempotency_unrecorded: [FIRST, "The function ran, but its outcome isn't known to be stored, so a later delivery may run it again."
    + ' The log names the record or the request, and the cause.'],
  idempotency_outcome_unknown: [FIRST, 'An operation that runs at most once ended without an answer, and a later delivery was refused.'
    + ' Run `idempotency list --unresolved`, then settle each record.'],
  idempotency_not_enforced: [FIRST, "Events reached the function without protection. Either IDEMPOTENCY_MODE is `off`, or the function's"
    + " runtime isn't behind the layer: check AWS_LAMBDA_EXEC_WRAPPER."],
  idempotency_layer_internal_error: [FIRST, 'The layer failed. This is a bug in the layer. The log says more.'],
  idempotency_layer_late_answer: [REPEATED, "The function's answers came after the deadline, and Lambda rejected them. Raise the"
    + " function's timeout."],
  idempotency_store_unavailable: [REPEATED, "DynamoDB couldn't be used, so events were refused and nothing ran. The log names the"
    + ' cause: throttling, a missing permission, or a wrong key schema.'],
  idempotency_all_failed: [REPEATED, "In one batch after another, every record is redelivered. The log's `returned` lines give the"
    + ' reasons.'],
};

/**
 * The layer and its table, for any number of functions.
 *
 *     const idempotency = new Idempotency(this, 'Idempotency', { zip: 'idempotency-0.1.0-arm64.zip' });
 *     idempotency.protect(payments, { key: '/payment_id' });
 */
class Idempotency extends Construct {
  /**
   * @param {Construct} scope
   * @param {string} id
   * @param {object} options
   * @param {string} [options.zip] The layer's zip. Each architecture has its own.
   * @param {lambda.ILayerVersion} [options.layer] A published layer, instead of `zip`.
   * @param {lambda.Architecture} [options.architecture] The zip's architecture. Default: arm64.
   * @param {dynamodb.ITable} [options.table] A table with the partition key `id` and the TTL attribute `expires_at`.
   *   Default: a new table, which stays when the stack is deleted.
   * @param {import('aws-cdk-lib/aws-sns').ITopic} [options.alarmTopic] The topic that the alarms notify.
   */
  constructor(scope, id, { zip, layer, architecture = lambda.Architecture.ARM_64, table, alarmTopic } = {}) {
    super(scope, id);
    if (!zip === !layer) {
      throw new Error('Idempotency: set either `zip`, the layer\'s zip, or `layer`, a published layer');
    }
    this.architecture = architecture;
    this.alarmTopic = alarmTopic;
    this.layer = layer ?? new lambda.LayerVersion(this, 'Layer', {
      code: lambda.Code.fromAsset(zip),
      compatibleArchitectures: [architecture],
      description: "The idempotency engine, in front of the function's runtime.",
    });
    this.table = table ?? new dynamodb.Table(this, 'Table', {
      partitionKey: { name: 'id', type: dynamodb.AttributeType.STRING },
      timeToLiveAttribute: 'expires_at',
      billingMode: dynamodb.BillingMode.PAY_PER_REQUEST,
      encryption: dynamodb.TableEncryption.AWS_MANAGED,
      pointInTimeRecoverySpecification: { pointInTimeRecoveryEnabled: true },
      // Without its record, an operation would run again.
      deletionProtection: true,
      removalPolicy: RemovalPolicy.RETAIN,
    });
  }

  /**
   * Puts the layer in front of a function.
   *
   * @param {lambda.Function} target The function. Give it a `functionName`: a record's id begins with it.
   * @param {object} settings The layer's settings, named as in its settings file: `key`, `retention`, `on_error`, … A list
   *   becomes a comma-separated value.
   * @returns {Record<string, cloudwatch.Alarm>} The function's alarms, by metric.
   */
  protect(target, settings) {
    this.#check(target, settings);
    target.addLayers(this.layer);
    if (WITH_WRAPPERS.includes(target.runtime.family)) {
      target.addEnvironment('AWS_LAMBDA_EXEC_WRAPPER', '/opt/idempotency-wrapper');
    } else {
      Annotations.of(target).addWarningV2('lambda-idempotency:bootstrap',
        "Lambda doesn't run wrapper scripts in this runtime. Deploy a bootstrap that calls /opt/idempotency-wrapper.");
    }
    target.addEnvironment('IDEMPOTENCY_TABLE', this.table.tableName);
    for (const [name, value] of Object.entries(settings)) {
      target.addEnvironment(`IDEMPOTENCY_${name.toUpperCase()}`, [value].flat().join(','));
    }
    this.table.grant(target, ...ACTIONS);
    return this.#alarms(target);
  }

  #check(target, settings) {
    if (!settings?.key && !['http', 'sqs', 'fifo', 'kinesis', 'dynamodb'].includes(settings?.event) && !settings?.config) {
      throw new Error(`Idempotency: ${target.node.path} needs \`key\`, which says what makes two events one operation`);
    }
    if (target.architecture.name !== this.architecture.name) {
      throw new Error(`Idempotency: ${target.node.path} runs on ${target.architecture.name}, and the layer is for ${this.architecture.name}`);
    }
    if (!Stack.of(target).resolve(target.node.defaultChild.functionName)) {
      Annotations.of(target).addWarningV2('lambda-idempotency:name',
        "Set `functionName`: a record's id begins with the function's name. If a generated name changes, earlier operations can run again.");
    }
  }

  #alarms(target) {
    const alarms = {};
    for (const [metricName, [when, alarmDescription]] of Object.entries(ALARMS)) {
      const metric = new cloudwatch.Metric({
        namespace: 'LambdaIdempotency',
        metricName,
        dimensionsMap: { FunctionName: target.functionName },
        statistic: 'Sum',
        period: Duration.minutes(1),
      });
      const alarm = new cloudwatch.Alarm(target, metricName, {
        metric,
        alarmDescription,
        threshold: 0,
        comparisonOperator: cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
        treatMissingData: cloudwatch.TreatMissingData.NOT_BREACHING,
        ...when,
      });
      if (this.alarmTopic) {
        alarm.addAlarmAction(new SnsAction(this.alarmTopic));
      }
      alarms[metricName] = alarm;
    }
    return alarms;
  }
}

module.exports = { Idempotency };
