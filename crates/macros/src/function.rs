//! Parses the function that the attribute is on, except its body, which stays a list of tokens.

use proc_macro2::{Group, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::{
    Attribute, Error, FnArg, GenericArgument, GenericParam, Ident, Pat, PathArguments, Result, ReturnType,
    Signature, Token, Type, Visibility,
    ext::IdentExt,
    parse::{Parse, ParseStream},
};

pub(crate) struct Function {
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) visibility: Visibility,
    pub(crate) signature: Signature,
    pub(crate) body: Group,
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        let visibility = input.parse()?;
        let signature: Signature = input.parse()?;
        if input.peek(Token![;]) {
            return Err(Error::new(
                input.span(),
                "`idempotent` needs the function's body; put the attribute on the method in the `impl`",
            ));
        }
        Ok(Self { attributes, visibility, signature, body: input.parse()? })
    }
}

impl Function {
    pub(crate) fn name(&self) -> String {
        self.signature.ident.unraw().to_string()
    }

    pub(crate) fn has_receiver(&self) -> bool {
        self.signature.receiver().is_some()
    }

    /// The parameters except `self`, each with its name. The name is `None` for a pattern that isn't a single name.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = (&Pat, Option<&Ident>)> {
        self.signature.inputs.iter().filter_map(|input| match input {
            FnArg::Receiver(_) => None,
            FnArg::Typed(typed) => match &*typed.pat {
                pattern @ Pat::Ident(named) if named.subpat.is_none() => Some((pattern, Some(&named.ident))),
                pattern => Some((pattern, None)),
            },
        })
    }

    /// The first parameter that makes the function generic: a type, a constant, or an `impl` in an argument's type.
    /// Lifetimes don't count.
    pub(crate) fn generic(&self) -> Option<Ident> {
        let mut parameters = self.signature.generics.params.iter().filter_map(|parameter| match parameter {
            GenericParam::Lifetime(_) => None,
            GenericParam::Type(of_type) => Some(of_type.ident.clone()),
            GenericParam::Const(constant) => Some(constant.ident.clone()),
        });
        parameters.next().or_else(|| {
            self.signature.inputs.iter().find_map(|input| match input {
                FnArg::Receiver(_) => None,
                FnArg::Typed(typed) => impl_in(typed.ty.to_token_stream()),
            })
        })
    }

    /// `T` and `E` of the return type `Result<T, E>`.
    pub(crate) fn result(&self) -> Result<(&Type, &Type)> {
        let text = "an idempotent function returns `Result<T, E>`, written with both types";
        let ReturnType::Type(_, output) = &self.signature.output else {
            return Err(Error::new_spanned(&self.signature.ident, text));
        };
        types_of_result(output).ok_or_else(|| Error::new_spanned(output, text))
    }
}

/// The keyword `impl` in a type, as in `&[impl Serialize]`.
fn impl_in(tokens: TokenStream) -> Option<Ident> {
    tokens.into_iter().find_map(|token| match token {
        TokenTree::Ident(word) => (word == "impl").then_some(word),
        TokenTree::Group(group) => impl_in(group.stream()),
        TokenTree::Punct(_) | TokenTree::Literal(_) => None,
    })
}

fn types_of_result(output: &Type) -> Option<(&Type, &Type)> {
    let Type::Path(path) = output else { return None };
    let last = path.path.segments.last().filter(|last| last.ident == "Result")?;
    let PathArguments::AngleBracketed(types) = &last.arguments else { return None };
    let mut types = types.args.iter();
    match (types.next(), types.next(), types.next()) {
        (Some(GenericArgument::Type(value)), Some(GenericArgument::Type(error)), None) => {
            Some((value, error))
        }
        _ => None,
    }
}

impl ToTokens for Function {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        let Self { attributes, visibility, signature, body } = self;
        tokens.extend(quote!(#(#attributes)* #visibility #signature #body));
    }
}
