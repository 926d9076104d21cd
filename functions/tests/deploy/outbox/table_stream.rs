//! Reads a table's stream as Lambda's event source mapping does: in order, from a checkpoint for each shard.

use std::collections::BTreeMap;

use serde_json::{Value, json};

pub(super) struct Stream {
    client: reqwest::Client,
    endpoint: String,
    arn: String,
    /// The sequence number of the last record that was processed, by shard.
    checkpoints: BTreeMap<String, String>,
}

/// Records of one shard.
pub(super) struct Read {
    pub(super) records: Vec<Value>,
    shard: String,
}

impl Read {
    /// The event that Lambda delivers.
    pub(super) fn event(&self) -> Value {
        json!({ "Records": self.records })
    }
}

impl Stream {
    /// The stream of this table.
    pub(super) async fn of(endpoint: &str, table: &str) -> Self {
        let (client, checkpoints) = (reqwest::Client::new(), BTreeMap::new());
        let mut stream = Self { client, endpoint: endpoint.into(), arn: String::new(), checkpoints };
        let listed = stream.call("ListStreams", &json!({ "TableName": table })).await;
        stream.arn = listed["Streams"][0]["StreamArn"].as_str().expect("the table's stream").into();
        stream
    }

    /// Finds the first shard that has records after its checkpoint, and returns the next ones, at most `limit`.
    pub(super) async fn read(&self, limit: u64) -> Option<Read> {
        let described = self.call("DescribeStream", &json!({ "StreamArn": self.arn })).await;
        for shard in described["StreamDescription"]["Shards"].as_array().unwrap() {
            let shard = shard["ShardId"].as_str().unwrap();
            let mut request =
                json!({ "StreamArn": self.arn, "ShardId": shard, "ShardIteratorType": "TRIM_HORIZON" });
            if let Some(checkpoint) = self.checkpoints.get(shard) {
                request["ShardIteratorType"] = json!("AFTER_SEQUENCE_NUMBER");
                request["SequenceNumber"] = json!(checkpoint);
            }
            let found = self.call("GetShardIterator", &request).await;
            let request = json!({ "ShardIterator": found["ShardIterator"], "Limit": limit });
            let mut records = match self.call("GetRecords", &request).await["Records"].take() {
                Value::Array(records) if !records.is_empty() => records,
                _ => continue,
            };
            // Lambda adds this field.
            records.iter_mut().for_each(|record| record["eventSourceARN"] = json!(self.arn));
            return Some(Read { records, shard: shard.into() });
        }
        None
    }

    /// Moves the checkpoint to the end of this batch, or to just before the record that the answer reports as failed.
    pub(super) fn move_on(&mut self, read: &Read, failed: Option<&str>) {
        let number = |record: &Value| record["dynamodb"]["SequenceNumber"].as_str().unwrap().to_owned();
        let numbers: Vec<_> = read.records.iter().map(number).collect();
        let done = match failed {
            Some(failed) => {
                numbers.iter().position(|number| number == failed).expect("a record of the batch")
            }
            None => numbers.len(),
        };
        if let Some(last) = numbers[..done].last() {
            self.checkpoints.insert(read.shard.clone(), last.clone());
        }
    }

    async fn call(&self, operation: &str, request: &Value) -> Value {
        // This access key and this Region are those of the tests' client, since DynamoDB Local has one database for
        // each pair.
        let signature = "AWS4-HMAC-SHA256 Credential=test/20261120/eu-west-1/dynamodb/aws4_request, \
                         SignedHeaders=host;x-amz-date;x-amz-target, Signature=0";
        let request = self
            .client
            .post(&self.endpoint)
            .header("content-type", "application/x-amz-json-1.0")
            .header("x-amz-target", format!("DynamoDBStreams_20120810.{operation}"))
            .header("x-amz-date", "20261120T000000Z")
            .header("authorization", signature)
            .body(request.to_string());
        let answer = request.send().await.unwrap().bytes().await.unwrap();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert!(answer.get("__type").is_none(), "{operation}: {answer}");
        answer
    }
}
