//! DynamoDB's messages may quote the handler's values. The store's errors never show these values.

use lambda_idempotency::store::Store as _;

use super::{TOKEN, cancelled, commit, complete, on, one};
use crate::wire::{Reply, Wire};

/// DynamoDB's messages about an invalid write, each with the text that the store's error must contain.
const MESSAGES: [(&str, &str); 4] = [
    (
        "One or more parameter values were invalid: Input collection [secret, secret] contains duplicates.",
        "contains duplicates",
    ),
    (
        "ExpressionAttributeValues contains invalid value: The parameter cannot be converted to a numeric \
         value: secret for key :n",
        "cannot be converted to a numeric value",
    ),
    ("1 validation error detected: Value 'secret' at 'item' failed to satisfy a constraint", "isn't shown"),
    (
        "The provided key element does not match the schema: secret",
        "The provided key element does not match the schema",
    ),
];

/// Returns DynamoDB's answer that cancels a transaction because one of the handler's writes is invalid. Its list of
/// reasons begins with `others`. The last reason is for the invalid write, and contains `message`.
fn wrong(others: &[(&str, Option<&str>)], message: &str) -> Reply {
    let Reply::Answer(status, body) = cancelled(&[others, &[("ValidationError", None)]].concat()) else {
        panic!("not an answer")
    };
    Reply::Answer(status, body.replace("why", message))
}

/// Returns a wire that answers each transaction with `reply`, and denies every other request.
async fn wire(reply: Reply) -> Wire {
    Wire::new(None, move |_, operation| match operation {
        "TransactWriteItems" => reply.clone(),
        _ => Reply::error(400, "AccessDeniedException", "no"),
    })
    .await
}

#[tokio::test]
async fn errors_never_quote_a_handlers_values() {
    for (message, says) in MESSAGES {
        let invalid = || Reply::error(400, "ValidationException", message);
        let mut errors = Vec::new();
        for reply in [invalid(), wrong(&[("None", None)], message)] {
            let store = on(&wire(reply).await).await;
            errors.push(commit(&store, &complete(), &one()).await.unwrap_err());
        }
        for reply in [invalid(), wrong(&[], message)] {
            let store = on(&wire(reply).await).await;
            errors.push(store.transactions().unwrap().commit_alone(&one(), TOKEN).await.unwrap_err());
        }
        for error in errors {
            // Unlike the error's text, the `Debug` form contains the error's sources.
            let shown = format!("{error:?}");
            assert!(shown.contains(says) && !shown.contains("secret"), "{shown}");
        }
    }
}
