//! The settings that say whose a key is.

use super::Setting;
use crate::{
    callers::{Callers, Field, Location, TokenIn, ephemeral_claim},
    config::{
        jwt::KeysIn,
        value::{self, Read, Wrong},
    },
};

pub(super) const SETTINGS: &[Setting] = &[
    Setting::new(
        "CALLERS",
        "`verified`, `required` (every request without a verified caller is refused), `shared`; `header:NAME`, JSON \
         Pointers such as `/requestContext/authorizer/lambda/userId`, `jmespath:EXPRESSION`, `jwt`, `credential` or \
         `any-credential` ([callers](#callers))",
        "verified, required, shared, header:NAME, a JSON Pointer such as /requestContext/authorizer/lambda/userId, \
         jmespath:EXPRESSION, jwt, credential or any-credential",
        |draft, callers| {
            draft.by_jwt = callers == "jwt";
            draft.rules.callers = match callers {
                "verified" | "jwt" => Callers::Verified,
                "required" => Callers::Required,
                "shared" => Callers::Shared,
                "credential" => Callers::Credential { is_any: false },
                "any-credential" => Callers::Credential { is_any: true },
                _ => Callers::Field(field(callers)?),
            };
            Ok(())
        },
    ),
    Setting::new(
        "IGNORE_COOKIES",
        "none; cookies that don't authenticate, such as `theme,lang,exp_*`. Those of the usual analytics scripts \
         (`_ga`, `_fbp` and others) and of load balancers' stickiness are always ignored",
        "names of cookies with commas between them; a name can end with *",
        |draft, names| {
            let names = value::list(names)?;
            if let Some(wrong) = names.iter().find(|name| !is_cookie(name)) {
                return Err(Wrong::Value(wrong.clone()));
            }
            draft.on_http(move |layer| Ok(layer.ignore_cookies(names.iter().map(String::as_str))))
        },
    ),
    Setting::new(
        "JWT_KEYS",
        "none; the issuer's keys for [`jwt`](#callers): the URL of its JWKS, or a JWKS file in the function's package",
        "a URL such as https://login.example.com/.well-known/jwks.json, or a file's path",
        |draft, keys| {
            draft.jwt.keys = Some(match keys.contains("://") {
                true => KeysIn::Url(Location::parse(keys).map_err(Wrong::Because)?),
                false => KeysIn::File(keys.to_owned()),
            });
            Ok(())
        },
    ),
    Setting::new(
        "JWT_ISSUER",
        "none; the claim `iss` that the tokens must have, letter for letter",
        "an issuer",
        |draft, issuer| {
            draft.jwt.issuer = Some(issuer.to_owned());
            Ok(())
        },
    ),
    Setting::new(
        "JWT_AUDIENCE",
        "none; the audiences of which the tokens must name one in `aud`, or in `client_id` if they have no `aud`",
        "audiences with commas between them",
        |draft, audiences| {
            draft.jwt.audiences = value::list(audiences)?;
            Ok(())
        },
    ),
    Setting::new(
        "JWT_CLAIM",
        "`sub`; another claim that names one caller, and stays the same when the token is refreshed",
        "the name of a claim",
        |draft, claim| {
            if ephemeral_claim(claim) {
                return Err(Wrong::Because(format!(
                    "`{claim}` names no caller: it differs in each token, or many callers share it"
                )));
            }
            draft.jwt.claim = Some(claim.to_owned());
            Ok(())
        },
    ),
    Setting::new(
        "JWT_IN",
        "`header:authorization` (after `Bearer`); another header, or `cookie:NAME`: the place of the token",
        "header:NAME or cookie:NAME",
        |draft, place| {
            draft.jwt.token_in = Some(match place.split_once(':') {
                Some(("header", name)) if name.eq_ignore_ascii_case("authorization") => {
                    TokenIn::Authorization
                }
                Some(("header", name)) => TokenIn::Header(value::header(name)?),
                Some(("cookie", name)) if is_cookie(name) && !name.ends_with('*') => {
                    TokenIn::Cookie(name.to_owned())
                }
                _ => return Err(Wrong::Value(place.to_owned())),
            });
            Ok(())
        },
    ),
];

/// The field of the event that names the caller.
fn field(text: &str) -> Read<Field> {
    let field = match text.split_once(':') {
        Some(("header", name)) => Field::header(name),
        Some(("jmespath", expression)) => Field::jmespath(expression),
        _ if text.starts_with('/') => {
            let pointers = value::list(text)?;
            match pointers.iter().find(|pointer| !pointer.starts_with('/')) {
                Some(other) => Err(format!("`{other}` isn't a JSON Pointer; it must begin with /")),
                None => Field::pointers(&pointers),
            }
        }
        _ => return Err(Wrong::Value(text.to_owned())),
    };
    field.map_err(Wrong::Because)
}

/// Whether this can be a cookie's name, or its beginning and `*`. `*` alone would ignore every cookie.
fn is_cookie(name: &str) -> bool {
    let beginning = name.strip_suffix('*').unwrap_or(name);
    let is_token = |byte: u8| byte.is_ascii_graphic() && !b"()<>@,;:\\\"/[]?={}*".contains(&byte);
    !beginning.is_empty() && beginning.bytes().all(is_token)
}
