//! The functions that an expression may call: JMESPath's own, with exact versions of those that would round a
//! number, and the functions that decode a field.

use std::io::Read as _;

use base64::{
    Engine as _,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use flate2::read::MultiGzDecoder;
use jmespath::{
    Context, ErrorReason, JmespathError, Rcvar, Runtime, Variable,
    ast::Ast,
    functions::{ArgumentType, CustomFunction, Signature},
};

use super::{Read, Unread};

const NAMES: [&str; 3] = ["json", "base64", "base64_gzip"];

/// Powertools' prefix for the names of these functions. Names with the prefix work here too.
const ALIAS: &str = "powertools_";

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Returns the functions of one search. They put the values that they decode into `read`.
pub(super) fn runtime(read: &Read) -> Runtime {
    let mut runtime = Runtime::new();
    runtime.register_builtin_functions();
    for name in NAMES {
        for alias in ["", ALIAS] {
            let decode = move |argument: &Rcvar, read: &Read| decoded(name, argument.as_string()?, read);
            register(&mut runtime, &format!("{alias}{name}"), ArgumentType::String, read, decode);
        }
    }
    register(&mut runtime, "to_string", ArgumentType::Any, read, |argument, read| match &**argument {
        Variable::String(_) => Some(Rcvar::clone(argument)),
        _ => read.written(argument).map(Variable::String).map(Rcvar::new),
    });
    register(&mut runtime, "to_number", ArgumentType::Any, read, |argument, read| {
        let null = || Some(Rcvar::new(Variable::Null));
        match &**argument {
            Variable::Number(_) => Some(Rcvar::clone(argument)),
            Variable::String(text) => match read.json(text) {
                Ok(value) if value.is_number() => Some(value),
                Ok(_) | Err(Unread::NotJson(_)) => null(),
                Err(Unread::TooMany) => None,
            },
            _ => null(),
        }
    });
    runtime
}

/// Registers a function of one argument. It replaces any function with the same name.
fn register(
    runtime: &mut Runtime,
    name: &str,
    of: ArgumentType,
    read: &Read,
    function: impl Fn(&Rcvar, &Read) -> Option<Rcvar> + Send + Sync + 'static,
) {
    let read = read.clone();
    let called = move |arguments: &[Rcvar], context: &mut Context<'_>| {
        let argument = arguments.first();
        argument.and_then(|argument| function(argument, &read)).ok_or_else(|| cannot_use(context))
    };
    let signature = Signature::new(vec![of], None);
    runtime.register_function(name, Box::new(CustomFunction::new(signature, Box::new(called))));
}

fn cannot_use(context: &Context<'_>) -> JmespathError {
    JmespathError::from_ctx(context, ErrorReason::Parse("the function can't use its argument".into()))
}

fn decoded(name: &str, text: &str, read: &Read) -> Option<Rcvar> {
    if name == "json" {
        return read.json(text).ok();
    }
    read.spend(text.len())?;
    let mut bytes = BASE64.decode(text).ok()?;
    if name == "base64_gzip" {
        bytes = decompressed(&bytes, read.left())?;
        read.spend(bytes.len())?;
    }
    String::from_utf8(bytes).ok().map(Variable::String).map(Rcvar::new)
}

fn decompressed(bytes: &[u8], most: usize) -> Option<Vec<u8>> {
    let mut decompressed = Vec::new();
    MultiGzDecoder::new(bytes).take(most as u64 + 1).read_to_end(&mut decompressed).ok()?;
    (decompressed.len() <= most).then_some(decompressed)
}

/// Returns the first unknown function that `ast` calls. The interpreter would report it only when a search
/// reaches the call.
pub(super) fn first_unknown(ast: &Ast) -> Option<&str> {
    unknown(ast, &runtime(&Read::default()))
}

fn unknown<'a>(ast: &'a Ast, known: &Runtime) -> Option<&'a str> {
    let any = |parts: &[&'a Ast]| parts.iter().find_map(|part| unknown(part, known));
    match ast {
        Ast::Function { name, args, .. } => {
            let is_unknown = known.get_function(name).is_none();
            is_unknown.then_some(name.as_str()).or_else(|| args.iter().find_map(|part| unknown(part, known)))
        }
        Ast::Comparison { lhs, rhs, .. }
        | Ast::Projection { lhs, rhs, .. }
        | Ast::And { lhs, rhs, .. }
        | Ast::Or { lhs, rhs, .. }
        | Ast::Subexpr { lhs, rhs, .. } => any(&[lhs, rhs]),
        Ast::Condition { predicate, then, .. } => any(&[predicate, then]),
        Ast::Expref { ast: node, .. }
        | Ast::Flatten { node, .. }
        | Ast::Not { node, .. }
        | Ast::ObjectValues { node, .. } => unknown(node, known),
        Ast::MultiList { elements, .. } => elements.iter().find_map(|part| unknown(part, known)),
        Ast::MultiHash { elements, .. } => elements.iter().find_map(|part| unknown(&part.value, known)),
        Ast::Identity { .. }
        | Ast::Field { .. }
        | Ast::Index { .. }
        | Ast::Literal { .. }
        | Ast::Slice { .. } => None,
    }
}
