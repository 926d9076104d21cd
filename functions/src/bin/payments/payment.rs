//! A payment, and the table of payments.

use std::collections::HashMap;

use aws_config::BehaviorVersion;
use aws_sdk_dynamodb::{
    Client,
    operation::put_item::PutItemError,
    types::{AttributeValue, Put, ReturnValuesOnConditionCheckFailure::AllOld},
};
use lambda_http::Error;
use serde::{Deserialize, Serialize};

/// A client's request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Order {
    order_id: String,
    amount_cents: u64,
    currency: String,
}

impl Order {
    /// Reads an order. If the order isn't valid, returns a message that tells the client why.
    pub(crate) fn from_json(body: &[u8]) -> Result<Self, String> {
        let order: Self = serde_json::from_slice(body).map_err(|error| format!("not an order: {error}"))?;
        match &order {
            Self { order_id, .. } if order_id.is_empty() => Err("not an order: order_id is empty".into()),
            Self { amount_cents: 0, .. } => Err("not an order: amount_cents is 0".into()),
            Self { currency, .. } if currency.len() != 3 => {
                Err("not an order: currency isn't a three-letter code".into())
            }
            _ => Ok(order),
        }
    }
}

/// A payment that has been made.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Payment {
    pub(crate) payment_id: String,
    order_id: String,
    amount_cents: u64,
    currency: String,
}

impl Payment {
    pub(crate) fn new(payment_id: String, Order { order_id, amount_cents, currency }: Order) -> Self {
        Self { payment_id, order_id, amount_cents, currency }
    }

    fn into_item(self) -> HashMap<String, AttributeValue> {
        HashMap::from([
            ("payment_id".into(), AttributeValue::S(self.payment_id)),
            ("order_id".into(), AttributeValue::S(self.order_id)),
            ("amount_cents".into(), AttributeValue::N(self.amount_cents.to_string())),
            ("currency".into(), AttributeValue::S(self.currency)),
        ])
    }

    fn from_item(item: &HashMap<String, AttributeValue>) -> Result<Self, Error> {
        let text = |name: &str| {
            let value = item.get(name).and_then(|value| value.as_s().ok());
            value
                .cloned()
                .ok_or_else(|| Error::from(format!("the stored payment has no text attribute `{name}`")))
        };
        let amount = item.get("amount_cents").and_then(|value| value.as_n().ok());
        Ok(Self {
            payment_id: text("payment_id")?,
            order_id: text("order_id")?,
            amount_cents: amount.ok_or("the stored payment has no number `amount_cents`")?.parse()?,
            currency: text("currency")?,
        })
    }
}

/// The table of payments.
#[derive(Clone, Debug)]
pub(crate) struct Payments {
    client: Client,
    table: String,
    in_transactions: bool,
}

impl Payments {
    /// Uses the table that `PAYMENTS_TABLE` names. With `PAYMENTS_FORM=transaction`, a payment is made in the
    /// transaction that records its operation's outcome.
    pub(crate) async fn from_env() -> Result<Self, Error> {
        let table = std::env::var("PAYMENTS_TABLE")
            .map_err(|_| "PAYMENTS_TABLE isn't set: set it to the name of the table of payments")?;
        let in_transactions = match std::env::var("PAYMENTS_FORM").as_deref() {
            Ok("transaction") => true,
            Ok("" | "claim") | Err(_) => false,
            Ok(_) => return Err("PAYMENTS_FORM must be `claim` or `transaction`".into()),
        };
        let config = aws_config::load_defaults(BehaviorVersion::latest()).await;
        Ok(Self { client: Client::new(&config), table, in_transactions })
    }

    /// For tests in which every payment is made in its operation's transaction. The DynamoDB client then sends no
    /// request, and needs no credentials.
    #[cfg(test)]
    pub(crate) fn in_transactions(table: &str) -> Self {
        let config = aws_sdk_dynamodb::Config::builder().behavior_version(BehaviorVersion::latest()).build();
        Self { client: Client::from_conf(config), table: table.to_owned(), in_transactions: true }
    }

    /// Whether payments are made in their operation's transaction, if the operation has one.
    pub(crate) fn are_in_transactions(&self) -> bool {
        self.in_transactions
    }

    /// Returns the write that makes a payment when its transaction commits.
    pub(crate) fn put(&self, payment: &Payment) -> Result<Put, Error> {
        let put = Put::builder().table_name(&self.table).set_item(Some(payment.clone().into_item()));
        Ok(put.condition_expression("attribute_not_exists(payment_id)").build()?)
    }

    /// Stores a new payment. If an earlier attempt already made a payment with this id, returns that payment and writes
    /// nothing.
    pub(crate) async fn create(&self, payment: Payment) -> Result<Payment, Error> {
        let put = self
            .client
            .put_item()
            .table_name(&self.table)
            .set_item(Some(payment.clone().into_item()))
            .condition_expression("attribute_not_exists(payment_id)")
            .return_values_on_condition_check_failure(AllOld)
            .send()
            .await;
        match put.map_err(aws_sdk_dynamodb::error::SdkError::into_service_error) {
            Ok(_) => Ok(payment),
            Err(PutItemError::ConditionalCheckFailedException(refused)) => {
                Payment::from_item(refused.item().ok_or("DynamoDB didn't return the existing payment")?)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the payment with this id, if there is one.
    pub(crate) async fn read(&self, id: &str) -> Result<Option<Payment>, Error> {
        let key = AttributeValue::S(id.into());
        let read = self.client.get_item().table_name(&self.table).key("payment_id", key).send().await?;
        read.item().map(Payment::from_item).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_orders_are_refused() {
        let order = |body: &str| Order::from_json(body.as_bytes()).map(|order| order.order_id);
        assert_eq!(order(r#"{"order_id":"o","amount_cents":1250,"currency":"EUR"}"#), Ok("o".into()));

        let refused = |body: &str| order(body).unwrap_err();
        assert!(refused("{").starts_with("not an order: EOF"));
        assert!(refused(r#"{"order_id":"o"}"#).contains("missing field `amount_cents`"));
        let of = |id: &str, amount: i64, currency: &str| {
            refused(&format!(r#"{{"order_id":"{id}","amount_cents":{amount},"currency":"{currency}"}}"#))
        };
        assert_eq!(of("", 1, "EUR"), "not an order: order_id is empty");
        assert_eq!(of("o", 0, "EUR"), "not an order: amount_cents is 0");
        assert_eq!(of("o", 1, "EURO"), "not an order: currency isn't a three-letter code");
        assert!(of("o", -1, "EUR").contains("invalid value"));
    }

    #[test]
    fn payment_round_trips_through_its_item() {
        let order = Order { order_id: "o".into(), amount_cents: u64::MAX, currency: "EUR".into() };
        let payment = Payment::new("p".into(), order);
        let mut item = payment.clone().into_item();
        let read = Payment::from_item(&item).unwrap();
        assert_eq!(serde_json::json!(read), serde_json::json!(payment));

        item.remove("currency");
        let problem = Payment::from_item(&item).unwrap_err().to_string();
        assert_eq!(problem, "the stored payment has no text attribute `currency`");
    }
}
