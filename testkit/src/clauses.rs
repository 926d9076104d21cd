//! The table of the HTTP contract: draft-ietf-httpapi-idempotency-key-header-07, clause by clause, as requests
//! and answers. Tests run all of it through every front end, in process and through a real function under the
//! Runtime API. Tests of the deployed `payments` run the cases that `payments` supports.
//!
//! The table numbers the draft's clauses D01 to D26. No request can show D06, D09, D10 and D23, which ask for a
//! published specification. Another test reads the specification. D26 registers the header's name, which isn't a
//! server's task.

use crate::{
    api::Layered::{AtMostOnce, Down, Plain, Required, Strict, Uuid},
    cases::{
        Case, Step,
        Then::{ByCaller, Refuses, Replays, Runs},
    },
    front_ends::{POST, Sent, UUID},
};

const fn runs(sent: Sent, status: u16) -> Step {
    Step { sent, then: Runs(status), meanwhile: &[] }
}

const fn replays(sent: Sent, status: u16) -> Step {
    Step { sent, then: Replays(status), meanwhile: &[] }
}

const fn refuses(sent: Sent, status: u16, code: &'static str) -> Step {
    Step { sent, then: Refuses(status, code), meanwhile: &[] }
}

const fn is_reused(sent: Sent) -> Step {
    refuses(sent, 422, "key-reused")
}

const fn is_invalid(key: &'static str) -> Step {
    refuses(by(key), 400, "key-invalid")
}

const fn by(key: &'static str) -> Sent {
    Sent { key: Some(key), ..POST }
}

const fn with(body: &'static str) -> Sent {
    Sent { body, ..POST }
}

const fn method(method: &'static str, key: &'static str) -> Sent {
    Sent { method, key: Some(key), ..POST }
}

/// A request with this key, whose handler answers with this status.
const fn status(status: &'static str, key: &'static str) -> Sent {
    Sent { status, key: Some(key), ..POST }
}

const fn later(seconds: &'static str, body: &'static str) -> Sent {
    Sent { ahead: seconds, body, ..POST }
}

const QUOTED: &str = "\"8e03978e-40d5-43dd-bc93-6894a57f9324\"";
const UUID_7: &str = "01890a5d-ac96-774b-bcce-6894a57f9324";
const NO_ORDER: &str = r#"{"note":"c4n4ry-none"}"#;
const ANOTHER: &str = r#"{"order_id":"c4n4ry-order","amount_cents":125,"currency":"EUR"}"#;
const ANOTHER_TEXT: &str = r#"{"order_id":"c4n4ry-order","amount_cents":1250.0,"currency":"EUR"}"#;
const ANOTHER_ORDER: &str = r#"{ "currency": "EUR", "amount_cents": 1250, "order_id": "c4n4ry-order" }"#;
const KEYLESS: Sent = Sent { key: None, ..POST };

/// The clauses that a request can show.
pub const SHOWN: [&str; 21] = [
    "D01", "D02", "D03", "D04", "D05", "D07", "D08", "D11", "D12", "D13", "D14", "D15", "D16", "D17", "D18",
    "D19", "D20", "D21", "D22", "D24", "D25",
];

/// Every case.
pub const CASES: &[Case] = &[
    Case {
        clauses: &["D01"],
        says: "a key is a string item, or the same text without quotes",
        layered: Plain,
        steps: &[
            runs(by(QUOTED), 201),
            replays(by(UUID), 201),
            is_invalid("\"c4n4ry-open"),
            is_invalid("\"c4n4ry\" x"),
            is_invalid("\"c4n4ry\\x\""),
            is_invalid("\"c4n4ry\", \"b\""),
            is_invalid("c4n4ry l"),
            is_invalid("c4n4ry,b"),
            is_invalid("\"\""),
            is_invalid("\"  \""),
            is_invalid(""),
        ],
    },
    Case {
        clauses: &["D01"],
        says: "in strict mode, only a string item is a key",
        layered: Strict,
        steps: &[
            is_invalid(UUID),
            is_invalid("1"),
            is_invalid("?1"),
            is_invalid(":aGk=:"),
            runs(by(QUOTED), 201),
            replays(by(QUOTED), 201),
        ],
    },
    Case {
        clauses: &["D02", "D17"],
        says: "a key that's reused with another payload is refused",
        layered: Plain,
        steps: &[
            runs(POST, 201),
            is_reused(with(ANOTHER)),
            is_reused(with(ANOTHER_TEXT)),
            is_reused(Sent { query: "a=1", ..POST }),
            is_reused(method("PATCH", UUID)),
            replays(POST, 201),
        ],
    },
    Case {
        clauses: &["D17"],
        says: "the refusal of a reused key links to the documentation",
        layered: Required,
        steps: &[runs(POST, 201), is_reused(with(ANOTHER))],
    },
    Case {
        clauses: &["D03", "D25"],
        says: "each caller has its own keys, and all sessions of a role are one caller; a load balancer doesn't verify \
            callers",
        layered: Plain,
        steps: &[
            runs(POST, 201),
            replays(Sent { session: "c4n4ry-two", ..POST }, 201),
            Step {
                sent: Sent { role: "C4N4RYTILL", body: ANOTHER, ..POST },
                then: ByCaller(&Runs(201), &Refuses(422, "key-reused")),
                meanwhile: &[],
            },
        ],
    },
    Case {
        clauses: &["D04"],
        says: "a UUID is a valid key, and the layer can require UUIDs",
        layered: Uuid,
        steps: &[runs(by(UUID), 201), runs(by(UUID_7), 201), is_invalid("c4n4ry-key")],
    },
    Case {
        clauses: &["D05", "D11"],
        says: "a key that has expired can be used for another request",
        layered: Plain,
        steps: &[
            runs(POST, 201),
            // A key expires after a day, which is 86400 seconds.
            replays(later("82800", POST.body), 201),
            runs(later("90000", ANOTHER), 201),
            replays(later("90000", ANOTHER), 201),
        ],
    },
    Case {
        clauses: &["D07", "D13"],
        says: "the fingerprint covers the request's content, not its formatting",
        layered: Plain,
        steps: &[
            runs(Sent { query: "a=1&b=2", ..POST }, 201),
            replays(Sent { query: "b=2&a=1", body: ANOTHER_ORDER, ..POST }, 201),
        ],
    },
    Case {
        clauses: &["D08"],
        says: "a key on other methods than POST and PATCH is ignored",
        layered: Plain,
        steps: &[
            runs(method("GET", UUID), 404),
            runs(method("GET", UUID), 404),
            runs(method("GET", "\"open"), 404),
            runs(method("PUT", UUID), 404),
            runs(method("PUT", "\"open"), 404),
            runs(method("DELETE", UUID), 404),
            runs(method("DELETE", "\"open"), 404),
        ],
    },
    Case {
        clauses: &["D12", "D14", "D15", "D16"],
        says: "a first request is processed, and a retry gets its result, whether success or error",
        layered: Plain,
        steps: &[
            runs(POST, 201),
            replays(POST, 201),
            replays(POST, 201),
            runs(Sent { body: NO_ORDER, ..by("c4n4ry-6894a57f9324") }, 400),
            replays(Sent { body: NO_ORDER, ..by("c4n4ry-6894a57f9324") }, 400),
        ],
    },
    Case {
        clauses: &["D16"],
        says: "every final status is recorded as the result",
        layered: Plain,
        steps: &[
            runs(status("200", "c4n4ry-200-6894a57f9324"), 200),
            replays(status("200", "c4n4ry-200-6894a57f9324"), 200),
            runs(status("303", "c4n4ry-303-6894a57f9324"), 303),
            replays(status("303", "c4n4ry-303-6894a57f9324"), 303),
            runs(status("410", "c4n4ry-410-6894a57f9324"), 410),
            replays(status("410", "c4n4ry-410-6894a57f9324"), 410),
            runs(status("422", "c4n4ry-422-6894a57f9324"), 422),
            replays(status("422", "c4n4ry-422-6894a57f9324"), 422),
        ],
    },
    Case {
        clauses: &["D18"],
        says: "a retry before completion is a conflict, but another payload is a mismatch",
        layered: Plain,
        steps: &[
            Step {
                sent: POST,
                then: Runs(201),
                meanwhile: &[refuses(POST, 409, "in-progress"), is_reused(with(ANOTHER))],
            },
            replays(POST, 201),
        ],
    },
    Case {
        clauses: &["D19", "D20"],
        says: "a request without a required key gets 400 with a link to the documentation",
        layered: Required,
        steps: &[refuses(KEYLESS, 400, "key-missing"), refuses(KEYLESS, 400, "key-missing")],
    },
    Case {
        clauses: &["D19"],
        says: "a request without a key runs if no key is required",
        layered: Plain,
        steps: &[runs(KEYLESS, 201), runs(KEYLESS, 201)],
    },
    Case {
        clauses: &["D21"],
        says: "an uncorrected request keeps failing and never runs",
        layered: Required,
        steps: &[
            runs(with(ANOTHER), 201),
            refuses(KEYLESS, 400, "key-missing"),
            refuses(KEYLESS, 400, "key-missing"),
            is_invalid("\"c4n4ry-open"),
            is_invalid("\"c4n4ry-open"),
            is_reused(POST),
            is_reused(POST),
            is_reused(POST),
        ],
    },
    Case {
        clauses: &["D22"],
        says: "transient failures aren't recorded as the result",
        layered: Plain,
        steps: &[
            runs(status("401", UUID), 401),
            runs(status("403", UUID), 403),
            runs(status("404", UUID), 404),
            runs(status("408", UUID), 408),
            runs(status("409", UUID), 409),
            runs(status("413", UUID), 413),
            runs(status("415", UUID), 415),
            runs(status("421", UUID), 421),
            runs(status("423", UUID), 423),
            runs(status("425", UUID), 425),
            runs(status("429", UUID), 429),
            runs(status("500", UUID), 500),
            runs(status("503", UUID), 503),
            runs(POST, 201),
            replays(POST, 201),
        ],
    },
    Case {
        clauses: &["D22"],
        says: "in at-most-once mode, a server failure is recorded as the result",
        layered: AtMostOnce,
        steps: &[runs(status("500", UUID), 500), replays(status("500", UUID), 500)],
    },
    Case {
        clauses: &["D24"],
        says: "a key is validated before any lookup",
        layered: Down,
        steps: &[
            is_invalid(""),
            is_invalid("\"c4n4ry-open"),
            is_invalid("c4n4ry b"),
            is_invalid("\"\""),
            is_invalid("c4n4ry,b"),
            is_invalid("c4n4ry;v=1"),
            refuses(POST, 503, "store-unavailable"),
        ],
    },
];
