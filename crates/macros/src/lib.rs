//! The attribute macro of [`lambda-idempotency`](https://docs.rs/lambda-idempotency). Use it from there, with
//! the feature `macros`.

mod arguments;
mod expand;
mod function;

use proc_macro::TokenStream;

#[doc = include_str!("idempotent.md")]
#[proc_macro_attribute]
pub fn idempotent(arguments: TokenStream, function: TokenStream) -> TokenStream {
    expand::expand(arguments.into(), function.into()).into()
}
