//! The settings for HTTP requests.

use super::Setting;
use crate::config::value::{self, Wrong};

pub(super) const SETTINGS: &[Setting] = &[
    Setting::new(
        "METHODS",
        "`POST,PATCH`: the methods that are protected",
        "methods such as POST,PUT",
        |draft, methods| {
            let methods = value::methods(methods)?;
            draft.on_http(move |layer| Ok(layer.methods(methods.iter().cloned())))
        },
    ),
    Setting::new(
        "KEY_ALIAS",
        "none; headers that can have the key in place of `Idempotency-Key`, such as `x-request-token`",
        "names of headers with commas between them",
        |draft, names| {
            for name in value::headers(names)? {
                draft.on_http(move |layer| Ok(layer.key_alias(name.clone())))?;
            }
            Ok(())
        },
    ),
    Setting::new(
        "KEY_FORMAT",
        "1 to 255 visible ASCII characters; or stricter: `uuid`, `quoted` (as in the draft of the standard), \
         `shortest:16` (at least 16 characters), or several of them. For keys in headers",
        "uuid, quoted, or shortest: and a number, such as shortest:16, with commas between them",
        |draft, formats| {
            for format in value::list(formats)? {
                match format.split_once(':') {
                    None if format == "uuid" => draft.on_http(|layer| Ok(layer.uuid_keys(true)))?,
                    None if format == "quoted" => draft.on_http(|layer| Ok(layer.quoted_keys(true)))?,
                    Some(("shortest", length)) => {
                        let length = length.parse().ok().filter(|length| (1..=255).contains(length));
                        let length = length.ok_or(Wrong::Value(format))?;
                        draft.on_http(move |layer| Ok(layer.shortest_key(length)))?;
                    }
                    _ => return Err(Wrong::Value(format)),
                }
            }
            Ok(())
        },
    ),
    Setting::new(
        "OPERATIONS",
        "`IDEMPOTENCY_OPERATION` for all paths; or the operation of each path: `/charges=charge,/charges/{id}/refunds=\
         refund,/admin/{rest+}=admin`. Each operation has its own keys, so one key on two of these paths isn't 422. \
         The first path that fits counts",
        "a path and an operation's name, such as /charges=charge,/charges/{id}/refunds=refund",
        |draft, operations| {
            let operations = value::pairs(operations)?;
            draft.on_http(move |layer| {
                layer.operations(operations.iter().map(|(path, name)| (path.as_str(), name.as_str())))
            })
        },
    ),
    Setting::new(
        "IGNORE_QUERY",
        "none; parameters of the query that may differ when a key is used again: `timestamp,X-Amz-*`",
        "names of parameters with commas between them",
        |draft, names| {
            let names = value::list(names)?;
            draft.on_http(move |layer| Ok(layer.ignore_query(names.iter().map(String::as_str))))
        },
    ),
    Setting::new(
        "COMPARE_HEADERS",
        "none; headers that must match too when a key is used again, such as `x-api-version`",
        "names of headers with commas between them",
        |draft, names| {
            let names = value::headers(names)?;
            draft.on_http(move |layer| Ok(layer.fingerprint_headers(names.iter().cloned())))
        },
    ),
    Setting::new(
        "MAX_BODY",
        "`10485760` bytes: a keyed request with a larger body gets 413",
        value::BYTES,
        |draft, bytes| {
            let bytes = value::number(bytes)?;
            draft.on_http(move |layer| Ok(layer.max_body(bytes)))
        },
    ),
    Setting::new(
        "API_NAME",
        "the API's id and stage; or a name. A retry then finds its record even after the API was replaced or its \
         stage renamed. All APIs with this name in front of the function count as one",
        "a name",
        |draft, name| {
            let name = name.to_owned();
            draft.on_http(move |layer| Ok(layer.api_name(name.as_str())))
        },
    ),
    Setting::new(
        "STATUS",
        "[the usual statuses](../src/guide/idempotency_specification.md) of the layer's own answers; or others, by \
         the problem's code: `in-progress=202,key-reused=409`",
        "a problem's code and a status from 200 to 599, such as in-progress=202",
        |draft, statuses| {
            for (code, status) in value::pairs(statuses)? {
                let (kind, status) = (value::problem(&code)?, value::status(&status)?);
                draft.on_http(move |layer| Ok(layer.status(kind, status)))?;
            }
            Ok(())
        },
    ),
    Setting::new(
        "DOCUMENTATION",
        "[the specification](../src/guide/idempotency_specification.md) at docs.rs; or the URI of the page that \
         explains your API's keys. A problem's `type` is this URI with the problem's code as the fragment",
        "a URI with scheme and host, such as https://api.example.com/idempotency",
        |draft, page| {
            let page = value::page(page)?;
            draft.on_http(move |layer| Ok(layer.documentation(page.as_str())))
        },
    ),
    Setting::new(
        "REPLAY_MARKER",
        "`Idempotent-Replayed`: the header that marks replays",
        "a header's name",
        |draft, name| {
            let name = value::header(name)?;
            draft.rules.marker = name.clone();
            draft.on_http(move |layer| Ok(layer.replay_marker(name.clone())))
        },
    ),
    Setting::new(
        "CORS",
        "none; the origins of the pages that may read [the layer's own answers](#browsers), such as \
         `https://shop.example.com,https://admin.example.com`",
        "origins as browsers send them, such as https://shop.example.com: no path, no *, no usual port, lower case",
        |draft, origins| {
            for origin in value::list(origins)? {
                draft.rules.cors.push(value::origin(&origin)?);
            }
            Ok(())
        },
    ),
    Setting::new(
        "STREAMING",
        "`false`; `true` if the function streams over HTTP. The layer's own answers to REST APIs and function URLs \
         are then streams from the start. With `false`, they're streams once the function has sent one",
        "true or false",
        |draft, flag| {
            draft.rules.streams = value::flag(flag)?;
            Ok(())
        },
    ),
];
