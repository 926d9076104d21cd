//! The attribute's arguments: `key = order.id, compare = order, operation = "charge", with = app.idempotency`,
//! `reconcile = |claim| find_charge(claim, order)`, and `crate = payments::idempotency`.

use proc_macro2::Span;
use syn::{
    Error, Expr, ExprLit, Ident, Lit, LitStr, Path, Result, Token,
    ext::IdentExt as _,
    parse::{Parse, ParseStream},
};

pub(crate) struct Arguments {
    pub(crate) key: Expr,
    pub(crate) compare: Option<Expr>,
    pub(crate) operation: Option<LitStr>,
    pub(crate) with: Option<Expr>,
    /// The closure that asks for the effect of an earlier attempt.
    pub(crate) reconcile: Option<Expr>,
    /// The path of the library.
    pub(crate) library: Option<Path>,
}

impl Parse for Arguments {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let (mut key, mut compare, mut operation) = (None, None, None);
        let (mut with, mut reconcile, mut library) = (None, None, None);
        while !input.is_empty() {
            // `crate` is a keyword.
            let name = input.call(Ident::parse_any)?;
            let is_new = match name.to_string().as_str() {
                "key" => key.replace(expression(input, &name)?).is_none(),
                "compare" => compare.replace(expression(input, &name)?).is_none(),
                "operation" => operation.replace(operation_name(input)?).is_none(),
                "with" => with.replace(expression(input, &name)?).is_none(),
                "reconcile" => reconcile.replace(expression(input, &name)?).is_none(),
                "crate" => library.replace(path(input)?).is_none(),
                _ => {
                    let text = format!(
                        "`{name}` isn't an argument of `idempotent`; use `key`, `compare`, `operation`, `with`, \
                         `reconcile` or `crate`"
                    );
                    return Err(Error::new(name.span(), text));
                }
            };
            if !is_new {
                return Err(Error::new(name.span(), format!("`{name}` is given twice")));
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        let missing = || {
            let text = "`key` is missing; say which key the operation has: `#[idempotent(key = order.id)]`";
            Error::new(Span::call_site(), text)
        };
        Ok(Self { key: key.ok_or_else(missing)?, compare, operation, with, reconcile, library })
    }
}

/// Parses `= EXPRESSION`.
fn expression(input: ParseStream<'_>, name: &Ident) -> Result<Expr> {
    input.parse::<Token![=]>()?;
    let expression: Expr = input.parse()?;
    // A quoted expression is a constant: as the key, it would be the same key in all calls.
    if let Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) = &expression {
        let said = format!(
            "a quoted `{name}` is the same text in every call; leave out the quotes: `{name} = {}`",
            text.value()
        );
        return Err(Error::new(text.span(), said));
    }
    Ok(expression)
}

/// Parses `= PATH`, with or without quotes. serde's attribute of this name has quotes.
fn path(input: ParseStream<'_>) -> Result<Path> {
    input.parse::<Token![=]>()?;
    if input.peek(LitStr) {
        return input.parse::<LitStr>()?.parse_with(Path::parse_mod_style);
    }
    input.call(Path::parse_mod_style)
}

/// Parses `= "NAME"`, and checks it as `Idempotency::operation` does.
fn operation_name(input: ParseStream<'_>) -> Result<LitStr> {
    input.parse::<Token![=]>()?;
    let name: LitStr = input.parse()?;
    if is_operation_name(&name.value()) {
        return Ok(name);
    }
    let said = format!(
        "this isn't a valid name; use 1 to {LONGEST_NAME} of these characters: ASCII letters, digits, `-`, `_` and `.`"
    );
    Err(Error::new(name.span(), said))
}

/// The maximum length of an operation's name in bytes, as `Idempotency::operation` enforces it.
pub(crate) const LONGEST_NAME: usize = 124;

fn is_operation_name(name: &str) -> bool {
    let allowed = |sign: char| sign.is_ascii_alphanumeric() || matches!(sign, '-' | '_' | '.');
    (1..=LONGEST_NAME).contains(&name.len()) && name.chars().all(allowed)
}
