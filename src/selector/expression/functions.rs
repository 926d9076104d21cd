//! The functions that an expression may call: JMESPath's own, and those that decode what a field holds.

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

use super::Read;

/// What a compressed text may become, in bytes: more than the largest event that Lambda delivers (6 MB) holds unless
/// somebody means harm.
const MAX_DECOMPRESSED: u64 = 16 * 1024 * 1024;

const NAMES: [&str; 3] = ["json", "base64", "base64_gzip"];

/// The prefix under which users of Powertools know them.
const ALIAS: &str = "powertools_";

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The functions of one search, which notes in `read` what they decode.
pub(super) fn runtime(read: &Read) -> Runtime {
    let mut runtime = Runtime::new();
    runtime.register_builtin_functions();
    for name in NAMES {
        for alias in ["", ALIAS] {
            let read = read.clone();
            let function = move |arguments: &[Rcvar], context: &mut Context<'_>| {
                let argument = arguments.first().and_then(|argument| argument.as_string());
                let decoded = argument.and_then(|text| decoded(name, text, &read));
                decoded.ok_or_else(|| cannot_decode(context))
            };
            let signature = Signature::new(vec![ArgumentType::String], None);
            runtime.register_function(
                &format!("{alias}{name}"),
                Box::new(CustomFunction::new(signature, Box::new(function))),
            );
        }
    }
    runtime
}

fn cannot_decode(context: &Context<'_>) -> JmespathError {
    JmespathError::from_ctx(
        context,
        ErrorReason::Parse("the field does not hold what it is decoded as".into()),
    )
}

fn decoded(name: &str, text: &str, read: &Read) -> Option<Rcvar> {
    if name == "json" {
        return read.json(text).ok();
    }
    let mut bytes = BASE64.decode(text).ok()?;
    if name == "base64_gzip" {
        bytes = decompressed(&bytes)?;
    }
    String::from_utf8(bytes).ok().map(Variable::String).map(Rcvar::new)
}

fn decompressed(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut decompressed = Vec::new();
    MultiGzDecoder::new(bytes).take(MAX_DECOMPRESSED + 1).read_to_end(&mut decompressed).ok()?;
    (decompressed.len() as u64 <= MAX_DECOMPRESSED).then_some(decompressed)
}

/// The first name that `ast` calls and that is no function. The interpreter would tell only when it gets there.
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
