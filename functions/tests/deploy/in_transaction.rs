//! Tests `payments` in its transactional form, which commits the payment and the outcome together.

use lambda_idempotency_rehearsal::answer::Answer;

use super::stage::{Delivers, PAYMENTS, Running, TABLE, database, program_and_mark};

#[tokio::test(flavor = "multi_thread")]
async fn payment_commits_once_with_its_outcome() {
    let database = database().await;
    let (program, mark) = program_and_mark("payments");
    let command = format!("env PAYMENTS_FORM=transaction {program}");
    let mut payments = Running::command(&command, mark, &database).await;
    let mut bodies = Vec::new();
    for _ in 0..2 {
        let answer = payments.deliver("payments/http-api").await;
        let Answer::Http(http) = answer else { panic!("{answer:?}") };
        assert_eq!(http.status, 201, "{http:?}");
        bodies.push(http.body);
    }
    assert_eq!(bodies[0], bodies[1]);
    assert_eq!(payments.marks().await, 1);
    let order: serde_json::Value = serde_json::from_str(&bodies[0]).unwrap();
    let order = order["order_id"].as_str().unwrap().to_owned();
    assert_eq!(database.payments_of(PAYMENTS, &order).await.unwrap(), 1);

    // Once the table of records is deleted, no outcome can be recorded, so the transaction makes no second payment.
    database.delete_table(TABLE).await.unwrap();
    let mut another = Running::command(&command, mark, &database).await;
    let answer = another.deliver("payments/http-api").await;
    let Answer::Http(http) = answer else { panic!("{answer:?}") };
    assert_eq!(http.status, 503, "{http:?}");
    assert_eq!(database.payments_of(PAYMENTS, &order).await.unwrap(), 1);
}
