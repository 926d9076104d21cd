//! Builds sample events, as each source sends them.

use serde_json::{Map, Value, json};

use super::{event::Event, world::hash};

/// The front end of an HTTP function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FrontEnd {
    /// An HTTP API of API Gateway.
    HttpApi,
    /// A REST API of API Gateway.
    RestApi,
    /// A function URL.
    FunctionUrl,
    /// An application load balancer.
    LoadBalancer,
}

/// Builds the event of an HTTP request; see [`Event::request`].
#[derive(Clone, Debug)]
#[must_use = "call `event` to build the event"]
pub struct HttpRequest {
    front_end: FrontEnd,
    method: String,
    path: String,
    headers: Map<String, Value>,
    caller: Option<(String, String)>,
    body: String,
}

impl HttpRequest {
    /// Sets the `Idempotency-Key` header.
    pub fn key(self, key: &str) -> Self {
        self.header("idempotency-key", key)
    }

    /// Sets a header.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.insert(name.to_lowercase(), value.into());
        self
    }

    /// Sets the caller that the front end verified: a token's issuer and subject. Behind a function URL, where the
    /// caller signs the request, `issuer` is the account, and `subject` is the caller's id. Behind a load balancer,
    /// which doesn't verify callers, both are ignored.
    pub fn caller(mut self, issuer: &str, subject: &str) -> Self {
        self.caller = Some((issuer.to_owned(), subject.to_owned()));
        self
    }

    /// Sets the body, as JSON.
    pub fn json(mut self, body: &Value) -> Self {
        self.body = body.to_string();
        self.header("content-type", "application/json")
    }

    /// Sets the body.
    pub fn body(mut self, body: impl Into<String>) -> Self {
        self.body = body.into();
        self
    }

    /// Builds the event.
    pub fn event(self) -> Event {
        let Self { front_end, method, path, mut headers, caller, body } = self;
        headers.insert("host".to_owned(), "api.example.com".into());
        headers.insert("x-amzn-trace-id".to_owned(), "Root=1-6b000fc0-3c5d1f2e7a9b4c6d8e0f1a2b".into());
        headers.insert("x-forwarded-proto".to_owned(), "https".into());
        let id = id_of(&[&method, &path, &Value::from(headers.clone()).to_string(), &body]);
        let has_jwt = matches!(front_end, FrontEnd::HttpApi | FrontEnd::RestApi);
        let authorizer = match caller {
            Some((issuer, subject)) if front_end == FrontEnd::HttpApi => {
                json!({ "jwt": { "claims": { "iss": issuer, "sub": subject }, "scopes": null } })
            }
            Some((issuer, subject)) if has_jwt => json!({ "claims": { "iss": issuer, "sub": subject } }),
            Some((account, id)) => json!({ "iam": { "accountId": account, "callerId": id, "userId": id } }),
            None => Value::Null,
        };
        let mut event = match front_end {
            FrontEnd::HttpApi | FrontEnd::FunctionUrl => json!({
                "version": "2.0",
                "routeKey": "$default",
                "rawPath": path,
                "rawQueryString": "",
                "headers": headers,
                "requestContext": {
                    "accountId": "123456789012", "apiId": "a1b2c3d4e5", "domainName": "api.example.com",
                    "domainPrefix": "api", "requestId": id, "routeKey": "$default", "stage": "$default",
                    "time": "20/Nov/2026:09:15:44 +0000", "timeEpoch": 1_795_166_144_000_u64,
                    "http": {
                        "method": method, "path": path, "protocol": "HTTP/1.1", "sourceIp": "203.0.113.24",
                        "userAgent": "shop/2.4"
                    }
                },
                "body": body,
                "isBase64Encoded": false
            }),
            FrontEnd::RestApi => json!({
                "resource": path, "path": path, "httpMethod": method, "headers": headers,
                "multiValueHeaders": many(&headers),
                "queryStringParameters": null, "multiValueQueryStringParameters": null, "pathParameters": null,
                "stageVariables": null,
                "requestContext": {
                    "accountId": "123456789012", "apiId": "a1b2c3d4e5", "domainName": "api.example.com",
                    "resourceId": "r1", "resourcePath": path, "httpMethod": method, "path": path,
                    "protocol": "HTTP/1.1", "stage": "prod", "requestId": id, "extendedRequestId": format!("{id}="),
                    "requestTime": "20/Nov/2026:09:15:44 +0000", "requestTimeEpoch": 1_795_166_144_000_u64,
                    "identity": { "sourceIp": "203.0.113.24", "userAgent": "shop/2.4" }
                },
                "body": body,
                "isBase64Encoded": false
            }),
            FrontEnd::LoadBalancer => json!({
                "requestContext": { "elb": {
                    "targetGroupArn": "arn:aws:elasticloadbalancing:eu-central-1:123456789012:targetgroup/shop/1"
                } },
                "httpMethod": method, "path": path, "queryStringParameters": {}, "headers": headers,
                "body": body, "isBase64Encoded": false
            }),
        };
        if front_end != FrontEnd::LoadBalancer && !authorizer.is_null() {
            event["requestContext"]["authorizer"] = authorizer;
        }
        Event::of(&event)
    }
}

fn many(headers: &Map<String, Value>) -> Value {
    headers.iter().map(|(name, value)| (name.clone(), json!([value]))).collect::<Map<_, _>>().into()
}

/// Returns an id for this content, in the form of a UUID.
fn id_of(content: &[&str]) -> String {
    let (one, two) = (hash(content), hash(&[&["id"], content].concat()));
    let (three, four) = (hash(&[&["of"], content].concat()), one ^ two.rotate_left(16));
    format!(
        "{one:08x}-{:04x}-4{:03x}-8{:03x}-{three:08x}{:04x}",
        two >> 16,
        two & 0xfff,
        four >> 20,
        four & 0xffff
    )
}

/// Returns eight digits for this id.
fn digits(id: &str) -> String {
    format!("{:08}", hash(&[id]) % 100_000_000)
}

impl Event {
    /// Begins the event of an HTTP request behind this front end.
    ///
    /// ```
    /// use lambda_idempotency_testing::{Event, FrontEnd};
    ///
    /// let event = Event::request(FrontEnd::HttpApi, "POST", "/payments")
    ///     .key("8e03978e")
    ///     .caller("https://login.example.com", "anna")
    ///     .json(&serde_json::json!({ "cents": 1250 }))
    ///     .event();
    /// ```
    pub fn request(front_end: FrontEnd, method: &str, path: &str) -> HttpRequest {
        let (method, path) = (method.to_owned(), path.to_owned());
        HttpRequest { front_end, method, path, headers: Map::new(), caller: None, body: String::new() }
    }

    /// Builds an event with messages of a standard SQS queue, one per body.
    ///
    /// A message's ids come from its queue, its body and its place, so two messages have different ids. That's so for
    /// the events of all sources here. A redelivery ([`retried`](Self::retried)) keeps the ids. To send the same content
    /// as a new message, set the ids in the event's JSON.
    pub fn sqs<B: Into<String>>(queue: &str, bodies: impl IntoIterator<Item = B>) -> Self {
        Self::of_messages(queue, bodies.into_iter().map(|body| (None, body.into())))
    }

    /// Builds an event with messages of a FIFO queue. Each item of `messages` is a group and the body.
    ///
    /// ```
    /// use lambda_idempotency_testing::Event;
    ///
    /// let event = Event::fifo("orders.fifo", [("anna", "order 1"), ("otto", "order 2"), ("anna", "order 3")]);
    /// ```
    pub fn fifo<'a, B: Into<String>>(queue: &str, messages: impl IntoIterator<Item = (&'a str, B)>) -> Self {
        Self::of_messages(queue, messages.into_iter().map(|(group, body)| (Some(group), body.into())))
    }

    fn of_messages<'a>(queue: &str, messages: impl Iterator<Item = (Option<&'a str>, String)>) -> Self {
        let record = |(nth, (group, body)): (usize, (Option<&str>, String))| {
            let place = nth.to_string();
            let id = id_of(&[queue, group.unwrap_or_default(), &body, &place]);
            let mut attributes = json!({
                "ApproximateReceiveCount": "1",
                "AWSTraceHeader": "Root=1-6b00107a-a3b4c5d6e7f8091a2b3c4d5e",
                "SentTimestamp": "1795166330000",
                "SenderId": "AROAEXAMPLE:shop",
                "ApproximateFirstReceiveTimestamp": "1795166330012"
            });
            if let Some(group) = group {
                attributes["MessageGroupId"] = group.into();
                attributes["MessageDeduplicationId"] = format!("dedup-{id}").into();
                attributes["SequenceNumber"] = format!("18884960{nth:04}{}", digits(&id)).into();
            }
            json!({
                "messageId": id, "receiptHandle": format!("handle-{id}"), "body": body,
                "attributes": attributes, "messageAttributes": {}, "md5OfBody": "20ddd33d35d4610f09ad17681532f3ae",
                "eventSource": "aws:sqs", "awsRegion": "eu-central-1",
                "eventSourceARN": format!("arn:aws:sqs:eu-central-1:123456789012:{queue}")
            })
        };
        Self::of_records(messages.enumerate().map(record).collect())
    }

    /// Builds an event with records of a Kinesis stream. Each item of `records` is a partition key and the data.
    pub fn kinesis<'a>(stream: &str, records: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        use base64::{Engine as _, engine::general_purpose::STANDARD};
        let record = |(nth, (partition, data)): (usize, (&str, &str))| {
            let id = id_of(&[stream, partition, data, &nth.to_string()]);
            let number = format!("4966{nth:044}{}", digits(&id));
            json!({
                "kinesis": {
                    "kinesisSchemaVersion": "1.0", "partitionKey": partition, "sequenceNumber": number,
                    "data": STANDARD.encode(data), "approximateArrivalTimestamp": 1_795_166_330.012
                },
                "eventSource": "aws:kinesis", "eventVersion": "1.0", "eventName": "aws:kinesis:record",
                "eventID": format!("shardId-000000000000:{number}"), "awsRegion": "eu-central-1",
                "invokeIdentityArn": "arn:aws:iam::123456789012:role/shop",
                "eventSourceARN": format!("arn:aws:kinesis:eu-central-1:123456789012:stream/{stream}")
            })
        };
        Self::of_records(records.into_iter().enumerate().map(record).collect())
    }

    /// Builds an event with new items of a table's stream. The items are in DynamoDB's JSON, and `keys` has the names
    /// of their key attributes.
    pub fn dynamodb_stream(table: &str, keys: &[&str], items: impl IntoIterator<Item = Value>) -> Self {
        let record = |(nth, item): (usize, Value)| {
            let id = id_of(&[table, &item.to_string(), &nth.to_string()]);
            let of_key = keys.iter().filter_map(|name| Some(((*name).to_owned(), item.get(*name)?.clone())));
            let of_key: Map<String, Value> = of_key.collect();
            json!({
                "eventID": id, "eventName": "INSERT", "eventVersion": "1.1",
                "eventSource": "aws:dynamodb", "awsRegion": "eu-central-1",
                "dynamodb": {
                    "Keys": of_key, "NewImage": item, "SequenceNumber": format!("44215845{nth:06}{}", digits(&id)),
                    "SizeBytes": 100, "StreamViewType": "NEW_AND_OLD_IMAGES",
                    "ApproximateCreationDateTime": 1_795_166_330
                },
                "eventSourceARN":
                    format!("arn:aws:dynamodb:eu-central-1:123456789012:table/{table}/stream/2026-11-01T08:00:00.000")
            })
        };
        Self::of_records(items.into_iter().enumerate().map(record).collect())
    }

    /// Builds an event of an EventBridge bus.
    pub fn event_bridge(source: &str, detail_type: &str, detail: &Value) -> Self {
        let id = id_of(&[source, detail_type, &detail.to_string()]);
        Self::of(&json!({
            "version": "0", "id": id, "detail-type": detail_type,
            "source": source, "account": "123456789012", "time": "2026-11-20T09:15:44Z",
            "region": "eu-central-1", "resources": [], "detail": detail
        }))
    }

    /// Builds an event of an EventBridge schedule at this time, such as `2026-11-20T09:00:00Z`.
    pub fn schedule(name: &str, time: &str) -> Self {
        Self::of(&json!({
            "version": "0", "id": id_of(&[name, time]), "detail-type": "Scheduled Event",
            "source": "aws.scheduler", "account": "123456789012", "time": time, "region": "eu-central-1",
            "resources": [format!("arn:aws:scheduler:eu-central-1:123456789012:schedule/default/{name}")],
            "detail": "{}"
        }))
    }

    /// Builds an event with an SNS message.
    pub fn sns(topic: &str, message: &str) -> Self {
        let arn = format!("arn:aws:sns:eu-central-1:123456789012:{topic}");
        Self::of_records(vec![json!({
            "EventSource": "aws:sns", "EventVersion": "1.0", "EventSubscriptionArn": format!("{arn}:2bcfbf39"),
            "Sns": {
                "Type": "Notification", "MessageId": id_of(&[topic, message]), "TopicArn": arn,
                "Subject": null, "Message": message, "Timestamp": "2026-11-20T09:15:44.120Z",
                "SignatureVersion": "1", "Signature": "EXAMPLE", "SigningCertUrl": "EXAMPLE",
                "UnsubscribeUrl": "EXAMPLE", "MessageAttributes": {}
            }
        })])
    }

    /// Builds an event about an object that was put into an S3 bucket.
    pub fn s3(bucket: &str, key: &str) -> Self {
        let id = id_of(&[bucket, key]);
        Self::of_records(vec![json!({
            "eventVersion": "2.1", "eventSource": "aws:s3", "awsRegion": "eu-central-1",
            "eventTime": "2026-11-20T09:15:44.120Z", "eventName": "ObjectCreated:Put",
            "userIdentity": { "principalId": "EXAMPLE" }, "requestParameters": { "sourceIPAddress": "203.0.113.24" },
            "responseElements": { "x-amz-request-id": id[..8].to_uppercase(), "x-amz-id-2": "EXAMPLE" },
            "s3": {
                "s3SchemaVersion": "1.0", "configurationId": "shop",
                "bucket": {
                    "name": bucket, "ownerIdentity": { "principalId": "EXAMPLE" },
                    "arn": format!("arn:aws:s3:::{bucket}")
                },
                "object": {
                    "key": key, "size": 1024, "eTag": "0123456789abcdef",
                    "sequencer": format!("0A1B2C3D{}", id[..8].to_uppercase())
                }
            }
        })])
    }

    fn of_records(records: Vec<Value>) -> Self {
        Self::of(&json!({ "Records": records }))
    }
}
