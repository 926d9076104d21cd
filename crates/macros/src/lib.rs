//! The attribute macro of [`lambda-idempotency`](https://docs.rs/lambda-idempotency). Use it from there, with
//! the feature `macros`.

mod arguments;
mod expand;
mod function;

use proc_macro::TokenStream;

/// Runs an async function once per key, and answers every later call with the recorded result. A short form
/// of [`Operation::run`][run].
///
/// [run]: https://docs.rs/lambda-idempotency/latest/lambda_idempotency/struct.Operation.html#method.run
///
/// ```
/// use lambda_idempotency::{Idempotency, idempotent, store::memory::MemoryStore};
/// # use std::cell::Cell;
///
/// #[derive(serde::Serialize)]
/// struct Order {
///     id: String,
///     cents: u64,
/// }
///
/// #[idempotent(key = order.id, compare = order)]
/// async fn charge(order: &Order, gateway: &Gateway, idempotency: &Idempotency) -> Result<String, std::io::Error> {
///     gateway.charge(order.cents).await
/// }
/// # struct Gateway(Cell<u32>);
/// # impl Gateway {
/// #     async fn charge(&self, cents: u64) -> Result<String, std::io::Error> {
/// #         self.0.set(self.0.get() + 1);
/// #         Ok(format!("receipt for {cents}"))
/// #     }
/// # }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let gateway = Gateway(Cell::new(0));
/// let idempotency = Idempotency::builder(MemoryStore::new()).function("orders").build()?;
/// let order = Order { id: "order-17".into(), cents: 1250 };
/// let receipt = charge(&order, &gateway, &idempotency).await?;
/// // The same order again: answered from the record.
/// assert_eq!(charge(&order, &gateway, &idempotency).await?, receipt);
/// # assert_eq!(gateway.0.get(), 1);
/// # Ok(())
/// # }
/// ```
///
/// The function is `async` and returns `Result<T, E>`, written with both types. The attribute changes this return
/// type into `Result<T, RunError<E>>`. `T` and `E` need the traits that `Operation::run` requires. The rest of the
/// signature stays the same. The example expands to this function:
///
/// ```
/// # use lambda_idempotency::{Idempotency, Key, RunError};
/// # #[derive(serde::Serialize)]
/// # struct Order { id: String, cents: u64 }
/// # struct Gateway;
/// # impl Gateway {
/// #     async fn charge(&self, cents: u64) -> Result<String, std::io::Error> { Ok(format!("receipt for {cents}")) }
/// # }
/// async fn charge(
///     order: &Order,
///     gateway: &Gateway,
///     idempotency: &Idempotency,
/// ) -> Result<String, RunError<std::io::Error>> {
///     let operation = idempotency.operation(concat!(module_path!(), "::charge").replace("::", "."))?;
///     let key = Key::new(&order.id)?;
///     operation.run(key, &order, || async { gateway.charge(order.cents).await }).await
/// }
/// ```
///
/// # Arguments
///
/// Each argument except `operation` is a Rust expression over the parameters, without quotes. The expressions are
/// evaluated before the body runs. A call runs the body at most once, so the body may borrow any parameter, and may
/// consume those that aren't compared.
///
/// | argument | meaning | default |
/// |---|---|---|
/// | `key` | the operation's key: a `Key`, or the text of one | none: it's required |
/// | `compare` | the payload that must match when the key is used again; `()` compares nothing | all parameters but `self` and the one that holds the `Idempotency` |
/// | `operation` | the operation's name, in quotes | the function's path with dots: `orders.payment.charge` |
/// | `with` | where the `Idempotency` is | the parameter `idempotency`, or the field `self.idempotency` |
/// | `crate` | the library's path, for a crate that re-exports it: `crate = payments::idempotency` | `::lambda_idempotency` |
///
/// The operation's name is part of every stored key. If you move or rename a function without the argument `operation`,
/// its operation gets a new name, and earlier records aren't found. Functions in an `impl` need the argument, because
/// the attribute doesn't see the type of the `impl`. (If a function without `self` lacks the argument, the compiler
/// says "`const` items in this context need a name".) A function inside another function needs the argument too,
/// because the path leaves out the outer function. A generic function needs it because the path leaves out the type
/// parameters. Even with the argument, all calls of a generic function share the operation and the keys, whatever their
/// types. If different types mean different operations, put the type into `key`.
///
/// The payload is borrowed while the body runs. If the body changes or consumes a parameter, compare a clone:
/// `compare = order.clone()`.
///
/// # Steps inside a handler
///
/// An idempotent function that a wrapped handler calls is a step of the handler. If the handler fails after the library
/// refused the step because it may succeed later, at-least-once handlers release their key, even if failures are
/// recorded. See [`Settings::on_handler_error`][on_handler_error].
///
/// [on_handler_error]: https://docs.rs/lambda-idempotency/latest/lambda_idempotency/settings/struct.Settings.html#structfield.on_handler_error
///
/// In a handler, pass a step's error on with `?`, and start the function with [`lambda::run`][lambda-run]. Lambda then
/// reports a refused step with its type, such as `Idempotency.InProgress`, although the handler returns
/// `lambda_runtime::Error` or another box. Under `lambda_runtime::run`, it reports the box's type.
///
/// [lambda-run]: https://docs.rs/lambda-idempotency/latest/lambda_idempotency/lambda/fn.run.html
///
/// # On a method
///
/// ```
/// use lambda_idempotency::{Idempotency, idempotent};
///
/// struct Payments {
///     idempotency: Idempotency,
/// }
///
/// impl Payments {
///     #[idempotent(operation = "refund", key = format!("{order}/{line}"))]
///     async fn refund(&self, order: &str, line: u32) -> Result<u64, std::io::Error> {
///         Ok(1250)
///     }
/// }
/// ```
#[proc_macro_attribute]
pub fn idempotent(arguments: TokenStream, function: TokenStream) -> TokenStream {
    expand::expand(arguments.into(), function.into()).into()
}
