//! Expands the attribute and its function into the code that a user would write with `Operation::run`.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::{Error, Ident, Result, ReturnType, parse_quote, spanned::Spanned};

use crate::{
    arguments::{Arguments, LONGEST_NAME},
    function::Function,
};

/// The parameter or field that holds the `Idempotency`, unless `with` names another.
const IDEMPOTENCY: &str = "idempotency";

pub(crate) fn expand(arguments: TokenStream, function: TokenStream) -> TokenStream {
    let expanded = syn::parse2::<Function>(function.clone()).and_then(|parsed| {
        let arguments = syn::parse2(arguments)?;
        idempotent(&arguments, parsed)
    });
    // After an error, the function stays in the output, so that the compiler reports no further errors in its callers.
    expanded.unwrap_or_else(|error| {
        let error = error.into_compile_error();
        quote!(#error #function)
    })
}

fn idempotent(arguments: &Arguments, mut function: Function) -> Result<TokenStream> {
    let ident = &function.signature.ident;
    if function.signature.asyncness.is_none() {
        return Err(Error::new_spanned(ident, "an idempotent function is `async`; write `async fn`"));
    }
    let (value, error) = function.result()?;
    let (value, error) = (value.clone(), error.clone());
    let with = with(arguments, &function)?;
    let (name, check) = operation(arguments, &function)?;
    let compare = compare(arguments, &function, &with)?;
    let key = &arguments.key;

    let (attributes, visibility, body) = (&function.attributes, &function.visibility, &function.body);
    let library = match &arguments.library {
        Some(path) => path.to_token_stream(),
        None => quote!(::lambda_idempotency),
    };
    let idempotency = quote_spanned!(at(&with)=> &(#with));
    let checked = quote_spanned!(at(key)=> #library::Key::new(&(#key))?);
    let payload = quote_spanned!(at(&compare)=> &(#compare));
    let output: ReturnType = parse_quote!(-> ::core::result::Result<#value, #library::RunError<#error>>);
    function.signature.output = output;
    let signature = &function.signature;
    let reconciled = arguments.reconcile.as_ref();
    let reconciled = reconciled.map(|question| quote_spanned!(at(question)=> .reconcile(#question)?));
    // Without `move`, the closure and its future borrow the variables that the body borrows, and consume only those
    // that the body consumes.
    Ok(quote_spanned! {Span::mixed_site()=>
        #check
        #(#attributes)*
        #visibility #signature {
            let operation = #library::Idempotency::operation(#idempotency, #name)?;
            let key = #checked;
            operation #reconciled .run::<#value, #error, _, _, _>(key, #payload, || async #body).await
        }
    })
}

/// Returns a span for generated code. A type error in code with this span points to the user's `tokens`, but Clippy
/// treats the code as the macro's, and skips it.
fn at(tokens: &impl Spanned) -> Span {
    tokens.span().resolved_at(Span::mixed_site())
}

/// Returns the expression for the `Idempotency`: the argument `with`, a parameter, or a field of `self`.
fn with(arguments: &Arguments, function: &Function) -> Result<TokenStream> {
    if let Some(with) = &arguments.with {
        return Ok(with.to_token_stream());
    }
    let mut names = function.parameters().filter_map(|(_, name)| name);
    if let Some(parameter) = names.find(|name| *name == IDEMPOTENCY) {
        return Ok(parameter.to_token_stream());
    }
    if let Some(receiver) = function.signature.receiver() {
        let this = &receiver.self_token;
        return Ok(quote!(#this.idempotency));
    }
    let text = "where is the `Idempotency`? Add a parameter `idempotency: &Idempotency`, or name another place: \
                `with = app.idempotency`";
    Err(Error::new_spanned(&function.signature.ident, text))
}

/// Returns the operation's name, and an item that checks the name when the user's crate is compiled. The item is empty
/// if the argument `operation` gives the name, because the name has already been checked.
fn operation(arguments: &Arguments, function: &Function) -> Result<(TokenStream, TokenStream)> {
    if let Some(given) = &arguments.operation {
        return Ok((given.to_token_stream(), TokenStream::new()));
    }
    let (ident, name) = (&function.signature.ident, function.name());
    // Two types in one module may have methods with the same name, and these methods would share their keys.
    if function.has_receiver() {
        let text =
            format!("a method's operation needs its own name, such as `operation = \"orders.{name}\"`");
        return Err(Error::new_spanned(ident, text));
    }
    // The path also leaves out type parameters. Calls with two different types can have the same key and the same JSON,
    // so the second call would replay the first one's result.
    if let Some(generic) = function.generic() {
        let text = format!(
            "a generic function's operation needs its own name, such as `operation = \"orders.{name}\"`. All \
             types share this name, so put the type into `key` if the types mean different operations"
        );
        return Err(Error::new(generic.span(), text));
    }
    let path = quote!(::core::concat!(::core::module_path!(), "::", #name));
    let text = format!(
        "the path of `{name}` can't be the operation's name: it isn't ASCII, or has more than {LONGEST_NAME} characters. \
         Name the operation: `operation = \"…\"`"
    );
    // The compiler rejects this constant in an `impl`. That's intended: the path leaves out the type of the `impl`, so
    // functions of two types would share their keys.
    let check = quote_spanned! {ident.span()=>
        const _: () = ::core::assert!(#path.len() <= #LONGEST_NAME && #path.is_ascii(), #text);
    };
    Ok((quote!(#path.replace("::", ".")), check))
}

/// Returns the payload to compare: by default, all parameters except the one with the `Idempotency`.
fn compare(arguments: &Arguments, function: &Function, with: &TokenStream) -> Result<TokenStream> {
    if let Some(compare) = &arguments.compare {
        return Ok(compare.to_token_stream());
    }
    let mut compared: Vec<&Ident> = Vec::new();
    for (pattern, name) in function.parameters() {
        match name {
            Some(name) if names(with, name) => {}
            Some(name) => compared.push(name),
            None => {
                let text = "this parameter has no name to compare it by; say what to compare: `compare = …`";
                return Err(Error::new_spanned(pattern, text));
            }
        }
    }
    Ok(match compared.as_slice() {
        [one] => one.to_token_stream(),
        all => quote_spanned!(function.signature.paren_token.span.join()=> (#(&#all,)*)),
    })
}

/// Whether `tokens` begin with the variable `name`, as `app.idempotency` begins with `app`.
fn names(tokens: &TokenStream, name: &Ident) -> bool {
    let first = tokens.clone().into_iter().find(|token| !matches!(token, TokenTree::Punct(_)));
    matches!(first, Some(TokenTree::Ident(first)) if first == *name)
}
