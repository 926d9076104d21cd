//! Checks a transaction before it's sent, because DynamoDB's own rejection explains less.
//!
//! "Quotas in Amazon DynamoDB" (developer guide): 100 actions, one of which is the record's; 4 MB together; 400
//! KB per item; and only one action per item.

use std::{borrow::Cow, collections::HashMap};

use aws_sdk_dynamodb::types::{AttributeValue, TransactWriteItem};

use super::Transaction;

/// The maximum number of handler writes in one transaction, besides the record.
const MAX_WRITES: usize = 99;
const MAX_ITEM_BYTES: usize = 400 * 1024;
const MAX_BYTES: usize = 4 * 1024 * 1024;

type Item = HashMap<String, AttributeValue>;

/// The parts of one write.
struct Parts<'a> {
    kind: &'static str,
    table: &'a str,
    /// The item's key, or for a put, the whole item.
    item: &'a Item,
    is_put: bool,
}

/// The idempotency record in the transaction.
pub(super) struct Own<'a> {
    pub(super) table: &'a str,
    pub(super) key: &'a Item,
    /// The size of the record's key in bytes, plus the size of the response once that's known. The other attributes,
    /// a few hundred bytes, aren't counted.
    pub(super) bytes: usize,
}

/// Checks the handler's writes against DynamoDB's limits.
///
/// # Errors
///
/// A description of the problem. It identifies a write by its index and table, never by its key.
pub(super) fn check(transaction: &Transaction, own: &Own<'_>) -> Result<(), String> {
    let count = transaction.items.len();
    if count > MAX_WRITES {
        return Err(format!(
            "{count} writes are staged, but a DynamoDB transaction allows {MAX_WRITES} besides the record; stage fewer"
        ));
    }
    let writes = taken_apart(transaction)?;
    let mut bytes = 0;
    for (place, write) in writes.iter().enumerate() {
        let size = item_bytes(write.item);
        if size > MAX_ITEM_BYTES {
            return Err(format!(
                "{} has {size} bytes, but DynamoDB allows {MAX_ITEM_BYTES} per item",
                named(place, write)
            ));
        }
        bytes += size;
        if same_table(write.table, own.table) && has_key(write.item, own.key) {
            return Err(format!(
                "{} is on the idempotency record itself, which only the library writes",
                named(place, write)
            ));
        }
    }
    if bytes + own.bytes > MAX_BYTES {
        return Err(format!(
            "the staged writes have {bytes} bytes together, and the record has {}, but a DynamoDB transaction \
             allows {MAX_BYTES}; stage fewer or smaller writes",
            own.bytes
        ));
    }
    match duplicate(&writes) {
        Some((one, other)) => Err(format!(
            "{} and {} are on the same item, which a DynamoDB transaction doesn't allow; combine them into one write",
            named(one, &writes[one]),
            named(other, &writes[other])
        )),
        None => Ok(()),
    }
}

fn taken_apart(transaction: &Transaction) -> Result<Vec<Parts<'_>>, String> {
    let parts = transaction.items.iter().map(parts).enumerate();
    parts.map(|(place, parts)| parts.ok_or_else(|| format!("write {place} is empty"))).collect()
}

fn parts(item: &TransactWriteItem) -> Option<Parts<'_>> {
    let parts = |kind, table, item, is_put| Some(Parts { kind, table, item, is_put });
    if let Some(put) = item.put() {
        return parts("put", put.table_name(), put.item(), true);
    }
    if let Some(update) = item.update() {
        return parts("update", update.table_name(), update.key(), false);
    }
    if let Some(delete) = item.delete() {
        return parts("delete", delete.table_name(), delete.key(), false);
    }
    item.condition_check().and_then(|check| parts("check", check.table_name(), check.key(), false))
}

/// Returns the kind and the table of a write.
pub(super) fn described(item: &TransactWriteItem) -> (&'static str, &str) {
    parts(item).map_or(("nothing", ""), |parts| (parts.kind, parts.table))
}

/// Describes the kind and the table of a write as text.
pub(super) fn described_text(item: &TransactWriteItem) -> String {
    let (kind, table) = described(item);
    format!("{kind} on table `{table}`")
}

/// A write, as a test shows it.
#[derive(Debug, Default)]
pub struct DescribedWrite {
    /// Its kind and table.
    pub name: String,
    /// The item's key; empty for a put, whose key attributes only the table knows.
    pub item: String,
    /// All its attributes in a stable order.
    pub detail: String,
    /// Its condition, with its placeholders; empty if it has none.
    pub condition: String,
}

/// Describes a write for a test.
pub(super) fn described_whole(item: &TransactWriteItem) -> DescribedWrite {
    let Some(Parts { kind, table, item: attributes, is_put }) = parts(item) else {
        return Default::default();
    };
    let sorted: std::collections::BTreeMap<_, _> = attributes.iter().collect();
    let (shown, mut detail) = (format!("{sorted:?}"), format!("{sorted:?}"));
    if let Some(update) = item.update() {
        let values: std::collections::BTreeMap<_, _> =
            update.expression_attribute_values().into_iter().flatten().collect();
        detail.push_str(&format!(" {} {values:?}", update.update_expression()));
    }
    let conditions = [
        item.put().and_then(|put| put.condition_expression()),
        item.update().and_then(|update| update.condition_expression()),
        item.delete().and_then(|delete| delete.condition_expression()),
        item.condition_check().map(|check| check.condition_expression()),
    ];
    DescribedWrite {
        name: format!("{kind} {table}"),
        item: if is_put { String::new() } else { shown },
        detail,
        condition: conditions.into_iter().flatten().collect(),
    }
}

fn named(place: usize, write: &Parts<'_>) -> String {
    format!("write {place} ({} on table `{}`)", write.kind, write.table)
}

/// Finds two writes on one item. An update, a delete or a check shows the names of its table's key attributes, but a
/// put doesn't. If all writes on a table are puts, this function finds only identical puts. DynamoDB rejects other puts
/// on one item.
fn duplicate(writes: &[Parts<'_>]) -> Option<(usize, usize)> {
    let key_names = |table: &str| {
        let other = writes.iter().find(|write| !write.is_put && same_table(write.table, table))?;
        Some(other.item.keys().map(String::as_str).collect::<Vec<_>>())
    };
    for (one, write) in writes.iter().enumerate() {
        let names = key_names(write.table);
        for (other, later) in writes.iter().enumerate().skip(one + 1) {
            if !same_table(write.table, later.table) {
                continue;
            }
            let is_same = match &names {
                Some(names) => names.iter().all(|name| {
                    let values = (write.item.get(*name), later.item.get(*name));
                    matches!(values, (Some(one), Some(other)) if same_value(one, other))
                }),
                None => write.item == later.item,
            };
            if is_same {
                return Some((one, other));
            }
        }
    }
    None
}

/// Whether `item` has the attributes of `key`, with the same values.
fn has_key(item: &Item, key: &Item) -> bool {
    key.iter().all(|(name, value)| item.get(name).is_some_and(|there| same_value(there, value)))
}

/// Whether DynamoDB treats two values as the same key. Trailing zeros in a number's fraction don't count.
fn same_value(one: &AttributeValue, other: &AttributeValue) -> bool {
    match (one, other) {
        (AttributeValue::N(one), AttributeValue::N(other)) => plain(one) == plain(other),
        (one, other) => one == other,
    }
}

fn plain(number: &str) -> Cow<'_, str> {
    if number.contains(['e', 'E']) {
        return number.into();
    }
    let number = number.strip_prefix('+').unwrap_or(number);
    match number.split_once('.') {
        Some((whole, fraction)) => match fraction.trim_end_matches('0') {
            "" => whole.into(),
            fraction => format!("{whole}.{fraction}").into(),
        },
        None => number.into(),
    }
}

/// Whether two names or ARNs mean the same table.
fn same_table(one: &str, other: &str) -> bool {
    let name = |table: &str| table.rsplit_once("table/").map_or(table, |(_, name)| name).to_owned();
    name(one) == name(other)
}

/// An item's size as DynamoDB counts it, or a few bytes less ("Item sizes and formats", developer guide).
pub(in crate::store::dynamodb) fn item_bytes(item: &Item) -> usize {
    item.iter().map(|(name, value)| name.len() + value_bytes(value)).sum()
}

fn value_bytes(value: &AttributeValue) -> usize {
    match value {
        AttributeValue::S(text) => text.len(),
        AttributeValue::N(number) => number_bytes(number),
        AttributeValue::B(blob) => blob.as_ref().len(),
        AttributeValue::Bool(_) | AttributeValue::Null(_) => 1,
        AttributeValue::Ss(texts) => texts.iter().map(String::len).sum(),
        AttributeValue::Ns(numbers) => numbers.iter().map(|number| number_bytes(number)).sum(),
        AttributeValue::Bs(blobs) => blobs.iter().map(|blob| blob.as_ref().len()).sum(),
        AttributeValue::L(values) => 3 + values.iter().map(|value| 1 + value_bytes(value)).sum::<usize>(),
        AttributeValue::M(map) => 3 + map.len() + item_bytes(map),
        _ => 0,
    }
}

/// A number's size in bytes: one for every two digits, plus one.
fn number_bytes(number: &str) -> usize {
    number.bytes().filter(u8::is_ascii_digit).count().div_ceil(2) + 1
}

#[cfg(test)]
mod tests {
    use aws_sdk_dynamodb::{
        primitives::Blob,
        types::{ConditionCheck, Delete, Put, Update},
    };

    use super::*;

    fn text(value: &str) -> AttributeValue {
        AttributeValue::S(value.to_owned())
    }

    fn number(value: &str) -> AttributeValue {
        AttributeValue::N(value.to_owned())
    }

    fn put(table: &str, id: AttributeValue) -> Put {
        Put::builder().table_name(table).item("id", id).item("colour", text("red")).build().unwrap()
    }

    fn update(table: &str, id: AttributeValue) -> Update {
        Update::builder().table_name(table).key("id", id).update_expression("SET a = :b").build().unwrap()
    }

    fn delete(table: &str, id: AttributeValue) -> Delete {
        Delete::builder().table_name(table).key("id", id).build().unwrap()
    }

    fn exists(table: &str, id: AttributeValue) -> ConditionCheck {
        let check = ConditionCheck::builder().table_name(table).key("id", id);
        check.condition_expression("attribute_exists(id)").build().unwrap()
    }

    fn checked_beside(transaction: &Transaction, bytes: usize) -> Result<(), String> {
        let key = Item::from([("id".to_owned(), text("orders/run#1"))]);
        check(transaction, &Own { table: "records", key: &key, bytes })
    }

    fn checked(transaction: &Transaction) -> Result<(), String> {
        checked_beside(transaction, 400)
    }

    fn refusal(transaction: &Transaction) -> String {
        checked(transaction).unwrap_err()
    }

    #[test]
    fn transactions_within_limits_are_accepted() {
        let transaction = Transaction::new()
            .put(put("orders", text("1")))
            .update(update("orders", text("2")))
            .delete(delete("orders", text("3")))
            .check(exists("customers", text("1")))
            .put(put("records", text("another/record")));
        assert_eq!(checked(&transaction), Ok(()));
        assert_eq!(checked(&Transaction::new()), Ok(()));
    }

    #[test]
    fn transactions_accept_ninety_nine_writes() {
        let of = |count: usize| {
            (0..count).fold(Transaction::new(), |all, n| all.update(update("orders", text(&n.to_string()))))
        };
        assert_eq!(checked(&of(99)), Ok(()));
        assert!(refusal(&of(100)).starts_with("100 writes are staged, but a DynamoDB transaction allows 99"));
    }

    #[test]
    fn duplicate_items_are_refused() {
        let one = Transaction::new().update(update("orders", text("1")));
        for transaction in [
            one.clone().delete(delete("orders", text("1"))),
            one.clone().check(exists("orders", text("1"))),
            one.clone().put(put("orders", text("1"))),
            one.clone().delete(delete("arn:aws:dynamodb:eu-west-1:123456789012:table/orders", text("1"))),
        ] {
            let refusal = refusal(&transaction);
            assert!(refusal.starts_with("write 0 (update on table `orders`) and write 1 ("), "{refusal}");
        }
        for transaction in [
            one.clone().delete(delete("orders", text("2"))),
            one.clone().delete(delete("others", text("1"))),
            one.put(put("orders", number("1"))),
        ] {
            assert_eq!(checked(&transaction), Ok(()));
        }
    }

    #[test]
    fn puts_are_compared_by_known_key_names() {
        let other = put("orders", text("1")).item().clone();
        let mut blue = other.clone();
        blue.insert("colour".to_owned(), text("blue"));
        let put_of =
            |item: &Item| Put::builder().table_name("orders").set_item(Some(item.clone())).build().unwrap();
        let twice = Transaction::new().put(put_of(&other)).put(put_of(&other));
        assert!(refusal(&twice).contains("are on the same item"));
        let differ = Transaction::new().put(put_of(&other)).put(put_of(&blue));
        assert_eq!(checked(&differ), Ok(()), "only DynamoDB knows the key attribute here");
        let differ = differ.delete(delete("orders", text("2")));
        assert!(refusal(&differ).starts_with("write 0 (put on table `orders`) and write 1 (put"));
    }

    #[test]
    fn numeric_keys_compare_by_value() {
        for (one, other, same) in [
            ("1", "1.0", true),
            ("1.50", "1.5", true),
            ("10", "1", false),
            ("+1", "1", true),
            ("-1", "1", false),
        ] {
            let both = Transaction::new().update(update("t", number(one))).delete(delete("t", number(other)));
            assert_eq!(checked(&both).is_err(), same, "{one} and {other}");
        }
    }

    #[test]
    fn handlers_cannot_write_the_record() {
        for table in ["records", "arn:aws:dynamodb:eu-west-1:123456789012:table/records"] {
            for transaction in [
                Transaction::new().put(put(table, text("orders/run#1"))),
                Transaction::new().check(exists(table, text("orders/run#1"))),
            ] {
                assert!(refusal(&transaction).contains("the idempotency record itself"));
            }
        }
    }

    #[test]
    fn item_and_total_sizes_are_limited() {
        let large = |id: &str, bytes| {
            let item = Put::builder().table_name("t").item("id", text(id));
            item.item("x", text(&"x".repeat(bytes))).build().unwrap()
        };
        let too_large = Transaction::new().put(large("1", 400 * 1024));
        assert!(refusal(&too_large).contains("DynamoDB allows 409600 per item"), "{}", refusal(&too_large));
        let of = |count: usize| {
            (0..count).fold(Transaction::new(), |all, n| all.put(large(&format!("{n:02}"), 399 * 1024)))
        };
        assert_eq!(checked(&of(10)), Ok(()));
        assert!(refusal(&of(11)).contains("bytes together"));
        // 10 items have 4,085,810 bytes, so 108,494 bytes of the 4 MiB are left.
        assert_eq!(checked_beside(&of(10), 108_494), Ok(()));
        assert!(checked_beside(&of(10), 108_495).is_err());
    }

    #[test]
    fn refusals_show_no_key() {
        let transaction =
            Transaction::new().update(update("t", text("secret"))).delete(delete("t", text("secret")));
        assert!(!refusal(&transaction).contains("secret"));
        assert!(!format!("{transaction:?}").contains("secret"));
    }

    #[test]
    fn transactions_report_their_number_of_writes() {
        let mut transaction = Transaction::new();
        assert!(transaction.is_empty());
        assert_eq!(transaction.len(), 0);
        transaction += Transaction::new().put(put("orders", text("1"))).delete(delete("baskets", text("2")));
        transaction += Transaction::new().update(update("stock", number("3")));
        assert!(!transaction.is_empty());
        assert_eq!(transaction.len(), 3);
    }

    #[test]
    fn described_writes_have_their_details() {
        let described =
            crate::store::dynamodb::transaction::described(&Transaction::new().put(put("orders", text("1"))));
        let [DescribedWrite { name, detail, .. }] = &described[..] else { panic!("{described:?}") };
        assert_eq!(name, "put orders");
        assert!(detail.contains("red") && detail.contains("\"1\""), "{detail}");
    }

    #[test]
    fn value_sizes_match_the_documentation() {
        let binary = |bytes: usize| Blob::new(vec![0; bytes]);
        for (value, bytes) in [
            (text("héllo"), 6),
            (number("7"), 2),
            (number("-1234.5"), 4),
            (AttributeValue::B(binary(5)), 5),
            (AttributeValue::Bool(true), 1),
            (AttributeValue::Null(true), 1),
            (AttributeValue::Ss(vec!["ab".into(), "cde".into()]), 5),
            (AttributeValue::Ns(vec!["12".into(), "3456".into()]), 5),
            (AttributeValue::Bs(vec![binary(4), binary(5)]), 9),
            (AttributeValue::L(vec![]), 3),
            (AttributeValue::L(vec![text("ab"), text("cde")]), 10),
            (AttributeValue::M(Item::new()), 3),
            (AttributeValue::M(Item::from([("a".into(), text("bc")), ("de".into(), text("f"))])), 11),
        ] {
            assert_eq!(value_bytes(&value), bytes, "{value:?}");
        }
    }

    #[test]
    fn write_descriptions_show_kind_and_table() {
        let transaction = Transaction::new()
            .put(put("orders", text("1")))
            .update(update("stock", text("2")))
            .delete(delete("baskets", text("3")))
            .check(exists("customers", text("4")));
        let described: Vec<_> = transaction.items.iter().map(described).collect();
        let expected =
            [("put", "orders"), ("update", "stock"), ("delete", "baskets"), ("check", "customers")];
        assert_eq!(described, expected);
        assert_eq!(described_text(&transaction.items[1]), "update on table `stock`");
    }

    #[test]
    fn largest_item_is_accepted() {
        let sized = |bytes: usize| {
            let filling = text(&"x".repeat(bytes - "id".len() - "1".len() - "filling".len()));
            Transaction::new().put(
                Put::builder()
                    .table_name("orders")
                    .item("id", text("1"))
                    .item("filling", filling)
                    .build()
                    .unwrap(),
            )
        };
        checked(&sized(MAX_ITEM_BYTES)).unwrap();
        assert!(refusal(&sized(MAX_ITEM_BYTES + 1)).contains("DynamoDB allows 409600 per item"));
    }
}
