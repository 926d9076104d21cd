//! Checks the module rules against the sources: imports point one way, stores don't name each other, `lib.rs`
//! has no logic, files are short, and one file reads the clock.
//!
//! The checks of the library's code skip `#[cfg(test)]` code, and most skip files called `tests` too, since the library
//! isn't built with them. The checks for long files, for lists of faults, and for `#[path]` and `include!` cover test
//! code too.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by a panic")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::LazyLock,
};

use testkit::source::{
    Named, Source, Token, follows, paths, paths_of, re_exports, read_under, root, shipped, tokens,
};

/// The core's modules, lowest first. A module may name only modules that come before it in this list.
const CORE: &[&str] = &[
    // Vocabulary.
    "future",
    "time",
    "error",
    "finite",
    "format",
    "key",
    "fingerprint",
    "selector",
    "key_fields",
    "outcome",
    "settings",
    "record",
    "draw",
    "failure",
    "diagnostic",
    // The store contract and the store in memory, and the suite that checks a store.
    "store",
    "conformance",
    // The rules.
    "protocol",
    // Names for other packages.
    "internal",
];

/// The face's modules, lowest first. The core's modules come before them: the face has them under the same names.
const FACE: &[&str] = &[
    // Documentation only.
    "guide",
    "invocation",
    "metrics",
    "store",
    // The code that applies the rules to one operation.
    "observe",
    "span",
    "run",
    // The public entry points, and the wrappers.
    "idempotency",
    "lambda",
    // Names for the kit for tests of a user's handlers.
    "kit",
];

/// The folders of the library's packages with a list of modules, each with the list.
static LISTED: LazyLock<Vec<(&str, Vec<&str>)>> = LazyLock::new(|| {
    let face = CORE.iter().filter(|module| !FACE.contains(module)).chain(FACE).copied();
    vec![("crates/core/src", CORE.to_vec()), ("src", face.collect())]
});

/// The modules of `run`, lowest first. They too may name only modules that come before them in this list.
const ORDER_OF_RUN: &[&str] = &[
    "handle",
    "staging",
    "context",
    "watch",
    "limits",
    "replay",
    "refusal",
    "cache",
    "brake",
    "driver",
    "response",
    "settle",
    "shadow",
    "unenforced",
    "claim",
    "commit",
    "begin",
    "optimistic",
    "extension",
    "right",
    "question",
    "protect",
    "in_transaction",
];

/// Modules that may name a store, each with the store's name. The module's users choose that store by name, or the
/// module itself needs a store in memory.
const MAY_NAME_A_STORE: &[(&str, &str)] = &[
    ("conformance", "memory"),
    ("kit", "dynamodb"),
    // `locate` derives keys with an `Idempotency`, which needs a store, but stores nothing in it.
    ("lambda::locate", "memory"),
];

/// The modules of `store` that implement `Store`.
static STORES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let folders = ["crates/core/src/store", "src/store"];
    let files = folders.iter().flat_map(|folder| fs::read_dir(root().join(folder)).unwrap());
    let stores = files
        .map(|entry| entry.unwrap().path())
        .filter(|file| file.is_file() && fs::read_to_string(file).unwrap().contains("\nimpl Store for "));
    stores.map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
});

/// The module with the table of stores, which may name every store.
const TABLE_OF_STORES: &str = "store::named";

/// Modules that no other module may name, since they're for the library's users.
const NAMED_BY_NOBODY: &[&str] = &["conformance", "guide", "kit"];

/// The types whose methods must be in at most [`MOST_FILES`] files, so that a reader finds them.
const FEW_FILES: &[&str] = &["Idempotency", "Driver"];
const MOST_FILES: usize = 3;

/// The most names at the crate's root.
const MOST_NAMES: usize = 30;

const LONGEST_FILE: usize = 600;
/// The most lines of `protocol.rs`, which has the machine's types and its dispatch. The rules are in its modules.
const LONGEST_DISPATCH: usize = 260;

/// The names of clocks, and of functions that read a clock or wait. Only `time/clock.rs` may contain these names. Even an
/// import counts, since a file could read the clock through an alias.
const CLOCKS: &[&[&str]] = &[
    &["SystemTime"],
    &["Instant"],
    &["UNIX_EPOCH"],
    &["Utc"],
    &[".", "elapsed", "("],
    &["sleep_until"],
    &["timeout_at"],
    &["interval_at"],
    &["park_timeout"],
    &["recv_timeout"],
    &["wait_timeout"],
    &["wait_timeout_while"],
];

/// The beginnings of the paths of other functions that wait. Outside `time.rs`, no path in the library's code may begin
/// like this.
const WAITS: &[&[&str]] = &[&["tokio", "time"], &["std", "thread", "sleep"]];

/// The file with the one list of faults.
const FAULTS: &str = "crates/testing/src/fault.rs";

/// If the name of an enum's variant begins with one of these words, the variant counts as a fault: of a request, a read
/// or a process.
const FAULT_WORDS: &[&str] = &[
    "Conflict",
    "Corrupt",
    "Crash",
    "Cut",
    "Delay",
    "Die",
    "Fail",
    "Freeze",
    "Garble",
    "Hang",
    "Internal",
    "Kill",
    "Late",
    "Lose",
    "Lost",
    "Outage",
    "Overlap",
    "Own",
    "Refuse",
    "Reject",
    "Reset",
    "Retry",
    "Silence",
    "Silent",
    "Slow",
    "Throttle",
    "Throttled",
    "Unreadable",
    "Unstorable",
];

/// Enums with variants whose names begin with [`FAULT_WORDS`], but that aren't lists of faults. Each lists the meanings
/// of an error, or the ways in which a faulty store breaks the contract.
const NOT_FAULTS: &[&str] = &[
    "crates/core/src/store/error.rs: StoreErrorKind",
    "crates/postgres/src/fault.rs: Class",
    "src/store/dynamodb/fault.rs: Class",
    "testkit/src/faulty/sabotage.rs: Sabotage",
];

/// An enum with more variants whose names begin with [`FAULT_WORDS`] counts as a list of faults. A few such variants
/// may be settings, states or answers.
const MOST_FAULTS: usize = 2;

#[test]
fn library_follows_its_layers() {
    for (folder, order) in LISTED.iter() {
        let sources = read_under(folder);
        assert!(sources.len() > 15, "the sources weren't found");
        let named = sources.iter().map(|(file, text)| paths(&shipped(text), &module(file)).len());
        assert!(named.sum::<usize>() > 100, "the imports weren't found");
        assert_eq!(violations(&sources, order), [""; 0], "{folder}");
    }
}

/// The stores' and the client's packages use only the core's public names, and its clock. The testing kit has its own
/// clock.
#[test]
fn small_packages_follow_the_rules() {
    for package in ["client", "opentelemetry", "postgres", "redis", "testing"] {
        for (file, text) in read_under(&format!("crates/{package}/src")) {
            assert!(text.lines().count() <= LONGEST_FILE, "{package}/{file} is too long");
            let tokens = shipped(&text);
            assert_eq!(clocks(&file, &tokens), [""; 0], "{package}");
            // The client and the kit pin the core. A store works with every core that has the same contract.
            let internal = ["lambda_idempotency_core", "internal"].map(str::to_owned);
            let of_core = paths_of(&tokens, &["lambda_idempotency_core"]);
            let names = of_core.iter().any(|named| named.path.starts_with(&internal));
            assert!(
                ["client", "testing"].contains(&package) || !names,
                "{package}/{file} names the core's module `internal`"
            );
        }
    }
}

#[test]
fn folders_have_no_import_cycles() {
    let (mut count, mut found) = (0, Vec::new());
    for folder in source_folders() {
        let sources = read_under(&folder);
        let named = named_modules(&sources);
        count += named.len();
        let folders: BTreeSet<Vec<String>> = named.iter().map(|(from, to)| shared(from, to)).collect();
        let cycles: Vec<String> = folders.iter().flat_map(|folder| cycle_in(folder, &named)).collect();
        found.extend(cycles.into_iter().map(|module| format!("{folder}: {module}")));
    }
    assert_eq!(found, [""; 0], "these modules import each other in a cycle");
    assert!(count > 1000, "the imports weren't found: {count}");
}

/// Returns the folder `src` of every package.
fn source_folders() -> Vec<String> {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let members = manifest.split_once("members = [").and_then(|(_, rest)| rest.split_once(']')).unwrap().0;
    let members = members.split('"').skip(1).step_by(2);
    members.map(|member| if member == "." { "src".to_owned() } else { format!("{member}/src") }).collect()
}

/// Returns a pair of paths for each module that names another: the module, and the module that it names. If a name is a
/// re-export, the pair has the module that the name comes from. So a cycle can't hide behind a re-export.
fn named_modules(sources: &[Source]) -> Vec<(Vec<String>, Vec<String>)> {
    let sources = || sources.iter().filter(|(file, _)| file != "lib.rs" && !is_test(file));
    let names: BTreeMap<Vec<String>, Vec<Vec<String>>> = sources()
        .map(|(file, text)| (module(file), paths(&shipped(text), &module(file))))
        .map(|(module, named)| (module, named.into_iter().map(|named| named.path).collect()))
        .collect();
    let mut found = Vec::new();
    for (from, paths) in &names {
        let modules = paths.iter().filter_map(|path| module_of(path.clone(), &names));
        found.extend(modules.filter(|to| to != from).map(|to| (from.clone(), to)));
    }
    found
}

/// Returns the module that the item at `path` comes from. `names` has the paths that each module names.
fn module_of(mut path: Vec<String>, names: &BTreeMap<Vec<String>, Vec<Vec<String>>>) -> Option<Vec<String>> {
    // A name may lead back to itself.
    let mut steps = 0..10;
    loop {
        let length = (1..=path.len()).rev().find(|length| names.contains_key(&path[..*length]))?;
        let (module, rest) = path.split_at(length);
        // Of the module's re-exports, only those from its own children are followed.
        let original = names[module].iter().find(|named| {
            named.len() > length + 1 && named.starts_with(module) && named.last() == rest.first()
        });
        match original {
            Some(original) if steps.next().is_some() => path = [original, &rest[1..]].concat(),
            _ => return Some(module.to_vec()),
        }
    }
}

/// The innermost folder with both modules.
fn shared(from: &[String], to: &[String]) -> Vec<String> {
    from.iter().zip(to).take_while(|(one, other)| one == other).map(|(name, _)| name.clone()).collect()
}

/// Returns the modules of `folder` that are part of an import cycle.
fn cycle_in(folder: &[String], named: &[(Vec<String>, Vec<String>)]) -> Vec<String> {
    let depth = folder.len();
    let mut reached: BTreeSet<(&str, &str)> = named
        .iter()
        .filter(|(from, to)| from.starts_with(folder) && to.starts_with(folder))
        .filter_map(|(from, to)| Some((from.get(depth)?.as_str(), to.get(depth)?.as_str())))
        .filter(|(from, to)| from != to)
        .collect();
    loop {
        let longer: Vec<_> = reached
            .iter()
            .flat_map(|(from, by)| {
                reached.iter().filter(move |(also, _)| also == by).map(move |(_, to)| (*from, *to))
            })
            .filter(|pair| !reached.contains(pair))
            .collect();
        if longer.is_empty() {
            break;
        }
        reached.extend(longer);
    }
    reached.iter().filter(|(from, to)| from == to).map(|(from, _)| (*from).to_owned()).collect()
}

#[test]
fn protocol_file_has_only_types_and_dispatch() {
    let lines = fs::read_to_string(root().join("crates/core/src/protocol.rs")).unwrap().lines().count();
    assert!(lines <= LONGEST_DISPATCH, "protocol.rs has {lines} lines; move rules to its modules");
}

#[test]
fn no_file_is_in_two_crates() {
    let sources = packages().into_iter().flat_map(|folder| read_under(&folder));
    let mut count = 0;
    for (file, text) in sources {
        count += 1;
        // Most files contain neither `path` nor `include!`, and needn't be parsed.
        let may = text.contains("path") || text.contains("include!");
        assert!(!may || !takes_another_file(&tokens(&text)), "{file} has `#[path]` or `include!`");
    }
    assert!(count > 300, "the sources were not found");
}

/// Only the file [`FAULTS`] may list faults. Another file may list ways to cause faults, if its function `amounts_to`
/// maps each way to a `Fault`.
#[test]
fn faults_have_one_list() {
    let (mut count, mut lists) = (0, Vec::new());
    for folder in packages() {
        for (file, text) in read_under(&folder) {
            let (file, tokens) = (format!("{folder}/{file}"), tokens(&text));
            let may = file == FAULTS || has(&tokens, &["fn", "amounts_to"]);
            for (name, variants) in enums(&tokens) {
                count += 1;
                lists.extend((!may && lists_faults(&name, &variants)).then(|| format!("{file}: {name}")));
            }
        }
    }
    assert!(count > 200, "the enums weren't found: {count}");
    lists.sort_unstable();
    assert_eq!(lists, NOT_FAULTS, "use `lambda_idempotency_testing::Fault`");
}

fn lists_faults(name: &str, variants: &[String]) -> bool {
    let is_fault = |variant: &&String| FAULT_WORDS.contains(&first_word(variant));
    name.ends_with("Fault") || variants.iter().filter(is_fault).count() > MOST_FAULTS
}

/// Returns the first word of a variant's name: `Lose` for `LoseAnswer`.
fn first_word(name: &str) -> &str {
    let next = name.char_indices().skip(1).find(|(_, letter)| letter.is_uppercase());
    &name[..next.map_or(name.len(), |(at, _)| at)]
}

/// Returns the name and the variants of each enum in a file.
fn enums(tokens: &[Token]) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    for at in (0..tokens.len()).filter(|at| tokens[*at].text == "enum") {
        let (Some(name), Some(open)) =
            (tokens.get(at + 1), tokens[at..].iter().position(|token| token.text == "{"))
        else {
            continue;
        };
        let (mut depth, mut begins, mut variants) = (0, true, Vec::new());
        for token in &tokens[at + open + 1..] {
            match token.text.as_str() {
                "}" if depth == 0 => break,
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => depth -= 1,
                "," if depth == 0 => begins = true,
                "#" => {}
                text if begins && depth == 0 => {
                    variants.push(text.to_owned());
                    begins = false;
                }
                _ => {}
            }
        }
        found.push((name.text.clone(), variants));
    }
    found
}

/// Returns the repository's top-level folders, without hidden folders and the build folder.
fn packages() -> Vec<String> {
    let folders = fs::read_dir(root()).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_dir());
    let names = folders.map(|entry| entry.file_name().into_string().unwrap());
    names.filter(|name| !name.starts_with('.') && name != "target").collect()
}

/// Whether a file has the attribute `path`, directly or in a `cfg_attr`, or includes another file as code.
fn takes_another_file(tokens: &[Token]) -> bool {
    // The tokens leave out literals, so the other file's path isn't among them.
    [&["#", "[", "path", "="][..], &[",", "path", "=", ")", "]"], &["include", "!"]]
        .iter()
        .any(|words| has(tokens, words))
}

#[test]
fn heavy_dependencies_are_absent() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let (_, dependencies) = manifest.split_once("\n[dependencies]\n").unwrap();
    let (dependencies, _) = dependencies.split_once("\n[").unwrap();
    for heavy in ["dynoxide", "clap", "rusqlite", " path ="] {
        assert!(!dependencies.contains(heavy), "the library depends on {heavy}");
    }
}

/// Returns the names at a crate's root, each with the path of its module. A name of the core gets its path there.
fn names_at_root(sources: &[Source]) -> Vec<(String, Vec<String>)> {
    let root = |sources: &[Source]| {
        let root = sources.iter().find(|(file, _)| file == "lib.rs");
        root.map(|(_, text)| shipped(text)).unwrap_or_default()
    };
    let root_of_core = re_exports(&root(&read_under("crates/core/src")));
    let of_core = paths_of(&root(sources), &["lambda_idempotency_core"]).into_iter().filter_map(|named| {
        let path = named.path.get(1..)?;
        let name = path.last()?.clone();
        let original = root_of_core.iter().find(|(other, _)| *other == name).map(|(_, path)| path.clone());
        Some((name.clone(), original.unwrap_or_else(|| vec![name])))
    });
    re_exports(&root(sources)).into_iter().chain(of_core).collect()
}

/// Returns one line per violation in `sources`, whose modules are in `order`.
fn violations(sources: &[Source], order: &[&str]) -> Vec<String> {
    let names = names_at_root(sources);
    let mut found = Vec::new();
    for (file, text) in sources {
        let lines = text.lines().count();
        if lines > LONGEST_FILE {
            found.push(format!("{file}: {lines} lines; at most {LONGEST_FILE} are allowed"));
        }
        let tokens = shipped(text);
        if file == "lib.rs" {
            found.extend(logic(&tokens));
        } else if !is_test(file) {
            found.extend(clocks(file, &tokens));
            found.extend(imports(file, &tokens, &names, order));
        }
    }
    found
}

fn is_test(file: &str) -> bool {
    file.split(['/', '.']).any(|part| part == "tests")
}

/// Returns the path of a file's module: `store`, `dynamodb`, `codec` for `store/dynamodb/codec.rs`.
fn module(file: &str) -> Vec<String> {
    file.trim_end_matches(".rs").split('/').map(str::to_owned).collect()
}

fn has(tokens: &[Token], words: &[&str]) -> bool {
    (0..tokens.len()).any(|at| follows(&tokens[at..], words))
}

fn logic(tokens: &[Token]) -> Vec<String> {
    const LOGIC: &[&str] =
        &["fn", "impl", "struct", "enum", "trait", "const", "static", "type", "macro_rules"];
    let logic = tokens.iter().filter(|token| LOGIC.contains(&token.text.as_str()));
    logic.map(|token| format!("lib.rs:{}: `{}`; move it to a module", token.line, token.text)).collect()
}

fn clocks(file: &str, tokens: &[Token]) -> Vec<String> {
    if file == "time.rs" || file == "time/clock.rs" {
        return vec![];
    }
    let reads = |words: &&&[&str]| has(tokens, words);
    let read = CLOCKS.iter().filter(reads).map(|words| words.concat());
    let waits = paths_of(tokens, &["tokio", "std"]).into_iter().filter(|Named { path, .. }| {
        // A glob may import anything below it.
        let (start, is_glob) = match path.split_last() {
            Some((last, start)) if last == "*" => (start, true),
            _ => (path.as_slice(), false),
        };
        WAITS.iter().any(|wait| {
            start.iter().zip(*wait).all(|(one, other)| one == other) && (is_glob || start.len() >= wait.len())
        })
    });
    let waits = waits.map(|Named { path, .. }| path.join("::"));
    read.chain(waits)
        .map(|what| format!("{file}: `{what}`; only `time.rs` may read a clock or wait"))
        .collect()
}

fn imports(
    file: &str,
    tokens: &[Token],
    re_exports: &[(String, Vec<String>)],
    order: &[&str],
) -> Vec<String> {
    let module = module(file);
    let mut found = Vec::new();
    for Named { mut path, line } in paths(tokens, &module) {
        // A re-export counts as its original: `crate::Owner` is `crate::record::Owner`.
        if let Some((_, of)) = re_exports.iter().find(|(name, _)| path.first() == Some(name)) {
            path.splice(..1, of.iter().cloned());
        }
        if let Some(why) = forbidden(&module, &path, order) {
            found.push(format!("{file}:{line}: `{}`; {why}", path.join("::")));
        }
    }
    found
}

/// Returns the reason if `module` may not name `path`.
fn forbidden(module: &[String], path: &[String], order: &[&str]) -> Option<String> {
    if module[0] == "internal" {
        // It lists the core's modules for the core's own packages.
        return None;
    }
    if path.last().is_some_and(|last| last == "*") {
        return Some("a glob import hides the names; list them".to_owned());
    }
    let (from, to) = (module.first()?.as_str(), path.first()?.as_str());
    let upward = if from != to {
        is_upward(order, from, to)
    } else if from == "run" {
        let (from, to) = (module.get(1)?.as_str(), path.get(1)?.as_str());
        (from != to).then(|| is_upward(ORDER_OF_RUN, from, to)).flatten()
    } else {
        None
    };
    if upward.is_some() || from == to && to != "store" {
        return upward;
    }
    if NAMED_BY_NOBODY.contains(&to) {
        return Some(format!("nothing may name `{to}`"));
    }
    let store = path.get(1).filter(|name| to == "store" && STORES.contains(name))?;
    let itself = from == "store" && module.get(1) == Some(store);
    let place = module.iter().take(2).cloned().collect::<Vec<_>>().join("::");
    let may = place == TABLE_OF_STORES
        || MAY_NAME_A_STORE.iter().any(|(by, named)| named == store && (*by == place || *by == from));
    (!itself && !may).then(|| format!("`{}` names the store `{store}`", module.join("::")))
}

fn is_upward(order: &[&str], from: &str, to: &str) -> Option<String> {
    let at = |name: &str| order.iter().position(|module| *module == name);
    match (at(from), at(to)) {
        (None, _) => Some(format!("`{from}` isn't in this test's list of modules; add it")),
        (_, None) => Some(format!("`{to}` isn't in this test's list of modules; add it")),
        (Some(own), Some(other)) => (other > own).then(|| format!("`{from}` is below `{to}`")),
    }
}

/// Returns the files that have an `impl NAME {`.
fn files_with_methods<'a>(sources: &'a [Source], name: &str) -> Vec<&'a str> {
    let has_methods = |(_, text): &&Source| has(&shipped(text), &["impl", name, "{"]);
    sources.iter().filter(has_methods).map(|(file, _)| file.as_str()).collect()
}

#[test]
fn methods_are_in_few_files() {
    let sources = read_under("src");
    for name in FEW_FILES {
        let files = files_with_methods(&sources, name);
        assert!((1..=MOST_FILES).contains(&files.len()), "{name}: {files:?}");
    }
}

#[test]
fn root_has_few_names() {
    let sources = read_under("src");
    let mut names = names_at_root(&sources);
    // Modules aren't counted.
    names.retain(|(_, path)| path.len() > 1);
    assert!(names.iter().any(|(name, _)| name == "Idempotency"), "the names weren't found");
    assert!(names.len() <= MOST_NAMES, "{} names: {names:?}", names.len());
}

#[test]
fn only_the_driver_calls_step() {
    let sources = read_under("src");
    let calls_step = |(file, text): &&Source| {
        let names = |Named { path, .. }: &Named| path.starts_with(&["protocol".into(), "step".into()]);
        !is_test(file)
            && !file.starts_with("protocol")
            && paths(&shipped(text), &module(file)).iter().any(names)
    };
    let files: Vec<_> = sources.iter().filter(calls_step).map(|(file, _)| file.as_str()).collect();
    assert_eq!(files, ["run/driver.rs"]);
}

#[test]
fn results_are_not_nested() {
    for (file, text) in read_under("src") {
        let tokens = shipped(&text);
        let nested = nested_results(&tokens);
        assert_eq!(nested, [""; 0], "{file} has a `Result<Result<…>>`");
    }
}

/// Returns each name that stands for a result and is the first type of another `Result`. The name is `Result` itself,
/// or an alias that this file declares.
fn nested_results(tokens: &[Token]) -> Vec<&str> {
    let is_alias = |at: &usize| {
        let rest = &tokens[*at..];
        follows(rest, &["type"]) && rest.len() > 4 && follows(&rest[2..], &["=", "Result", "<"])
    };
    let aliases = (0..tokens.len()).filter(is_alias).map(|at| tokens[at + 1].text.as_str());
    let names = aliases.chain(["Result"]);
    names.filter(|name| has(tokens, &["Result", "<", name])).collect()
}

#[test]
fn nested_results_are_found() {
    let nested = |text: &str| {
        let tokens = shipped(text);
        nested_results(&tokens).len()
    };
    assert_eq!(nested("fn f() -> Result<Result<u8, ()>, ()> {}"), 1);
    assert_eq!(nested("type R = Result<u8, ()>;\nfn f() -> Result<R, ()> {}"), 1);
    assert_eq!(nested("type R = Result<u8, ()>;\nfn f() -> Result<u8, R> {}"), 0);
}

#[test]
fn import_cycles_are_found() {
    let cycle = |one: &str, other: &str| {
        let parent = "mod b;\nmod c;\npub use b::B;\nuse c::{C, D};\nstruct Own;";
        let sources = [("a.rs", parent), ("a/b.rs", one), ("a/c.rs", other)];
        let sources = sources.map(|(file, text)| (file.to_owned(), text.to_owned()));
        cycle_in(&["a".to_owned()], &named_modules(&sources))
    };
    assert_eq!(cycle("use super::c::C;", "use crate::a::b::B;"), ["b", "c"]);
    assert_eq!(cycle("use super::c::C;", "#[cfg(test)]\nuse crate::a::b::B;"), [""; 0]);
    // `a` re-exports the names of `b` and `c`.
    assert_eq!(cycle("use crate::a::C;", "use crate::a::B;"), ["b", "c"]);
    assert_eq!(cycle("use crate::a::C;", "use crate::a::Own;"), [""; 0]);
}

// Tests of these checks.

/// Returns the violations of one made-up file next to a made-up `lib.rs`.
fn made_up(file: &str, text: &str) -> Vec<String> {
    let root = "mod idempotency;\nmod record;\npub use idempotency::{Idempotency};\npub use record::Owner;\n";
    violations(&[("lib.rs".into(), root.into()), (file.into(), text.into())], &LISTED[1].1)
}

#[test]
fn upward_imports_are_found() {
    for (file, text) in [
        ("store.rs", "use crate::run::driver::Driver;"),
        ("store.rs", "use crate::{\n    error::Error,\n    run::{self, driver::Driver},\n};"),
        ("store/redis.rs", "fn f() { crate::run::go() }"),
        ("store/redis.rs", "use super::super::run::driver::Driver;"),
        ("store/redis/script.rs", "use crate::Idempotency;"),
        ("record.rs", "use crate::store::Store;"),
        ("key.rs", "use crate::record::Owner;"),
        ("key.rs", "use crate::Owner;"),
        ("protocol.rs", "use crate::run as r;"),
        ("protocol/judge.rs", "use crate::observe;"),
        ("run/claim.rs", "use crate::lambda::http;"),
        ("run/claim.rs", "use crate::run::protect::Target;"),
        ("run/driver.rs", "use super::claim::Claim;"),
        ("run/novelty.rs", "use crate::run::claim::Claim;"),
        ("observe.rs", "use crate::run::claim::Claim;"),
        ("run.rs", "pub(in crate::lambda) fn f() {}"),
        ("run.rs", "#[cfg(feature = \"x\")]\nuse crate::idempotency;"),
        ("lambda.rs", "use crate::conformance;"),
        ("novelty.rs", "use crate::error::Error;"),
        ("store.rs", "use crate::*;"),
        ("store.rs", "use crate::{error::Error, *};"),
        ("store/redis.rs", "use super::*;"),
        ("store/redis.rs", "use super::super::*;"),
        ("store.rs", "fn f() { use self::memory::*; }"),
    ] {
        assert!(!made_up(file, text).is_empty(), "{file}: {text}");
    }
}

#[test]
fn forbidden_imports_of_stores_are_found() {
    for (file, text) in [
        ("store/redis.rs", "use crate::store::memory::MemoryStore;"),
        ("store/redis.rs", "use crate::store::{Store, dynamodb};"),
        ("store/redis.rs", "use super::memory::MemoryStore;"),
        ("store/redis/codec.rs", "use super::super::memory;"),
        ("store.rs", "pub mod memory;\npub use memory::MemoryStore;"),
        ("store.rs", "pub mod memory;\npub use self::memory::MemoryStore;"),
        ("lambda/http.rs", "type S = crate::store::dynamodb::DynamoDbStore;"),
        ("idempotency.rs", "use crate::store::memory::MemoryStore;"),
        ("conformance/chunks.rs", "use crate::store::dynamodb::DynamoDbStore;"),
    ] {
        assert_eq!(made_up(file, text).len(), 1, "{file}: {text}: {:?}", made_up(file, text));
    }
}

#[test]
fn allowed_imports_are_not_reported() {
    for (file, text) in [
        (
            "store/redis.rs",
            "use crate::{store::{Store, Write}, record::Record};\nmod codec;\nuse codec::Codec;",
        ),
        ("store/redis/codec.rs", "use super::Redis;\nuse crate::store::redis::Script;"),
        ("store.rs", "pub mod memory;\nuse crate::record::Record;"),
        ("run/begin.rs", "use crate::{protocol::Plan, run::claim::Claim};\nuse super::driver::Driver;"),
        ("store/named.rs", "use crate::store::{Store, memory::MemoryStore};"),
        ("lambda/http.rs", "use crate::Idempotency; use std::time::Duration; use std::thread;"),
        ("record.rs", "//! [`crate::run`]\n/* crate::run */ const S: &str = \"crate::run::x\";"),
        (
            "record.rs",
            "#[cfg(test)]\nmod tests {\n    use crate::run::driver::Driver;\n    fn f() { Instant::now(); }\n}",
        ),
        ("record.rs", "#[cfg(test)]\nuse crate::{run::driver::Driver};\nstruct S;"),
        ("protocol/tests.rs", "use crate::run::driver::Driver;"),
        ("idempotency/tests/support.rs", "use crate::store::memory::MemoryStore;"),
        ("time.rs", "fn now() { SystemTime::now(); tokio::time::sleep(d); }"),
        ("key.rs", "fn f<'a>(c: char) -> bool { c == '\"' || c == '\\'' }\nmod inner { use super::Key; }"),
    ] {
        assert_eq!(made_up(file, text), [""; 0], "{file}: {text}");
    }
}

#[test]
fn uses_of_clocks_are_found() {
    for text in [
        "let now = SystemTime::now();",
        "std::time::Instant::now()",
        "start.elapsed()",
        "use std::time::SystemTime as Wall;",
        "type Wall = std::time::Instant;",
        "tokio::time::sleep(d).await",
        "use tokio::time;",
        "use tokio::{net::TcpStream, time as t};",
        "use tokio::*;",
        "use std::thread::{self, sleep};",
        "sleep_until(then).await",
        "timeout_at(then, work).await",
        "std::thread::park_timeout(d);",
        "queue.recv_timeout(d)",
        "let c = '\"'; std::thread::sleep(d); let d = '\"';",
    ] {
        assert_eq!(made_up("idempotency.rs", text).len(), 1, "{text}");
    }
}

#[test]
fn long_files_are_found() {
    assert_eq!(made_up("idempotency.rs", &"\n".repeat(601)).len(), 1);
    assert_eq!(made_up("idempotency.rs", &"\n".repeat(600)).len(), 0);
    assert_eq!(made_up("idempotency/tests.rs", &"\n".repeat(601)).len(), 1);
}

#[test]
fn functions_in_lib_are_found() {
    assert_eq!(violations(&[("lib.rs".into(), "mod a;\n// fn\nfn f() {}".into())], CORE).len(), 1);
}

#[test]
fn path_attributes_and_includes_are_found() {
    for text in [
        "#[path = \"../other.rs\"]\nmod other;",
        "#[cfg_attr(unix, path = \"unix.rs\")]\nmod system;",
        "include!(\"other.rs\");",
    ] {
        assert!(takes_another_file(&tokens(text)), "{text}");
    }
    let others = "// #[path = \"a.rs\"]\nlet path = include_str!(\"a\"); f(a, path);";
    assert!(!takes_another_file(&tokens(others)));
}

#[test]
fn second_lists_of_faults_are_found() {
    for (text, is_list) in [
        ("enum Choice { Wait(u8), #[x] LoseAnswer(u8), Throttle { at: u8 }, Crash }", true),
        ("pub enum WireFault { A }", true),
        ("enum Kind { Unavailable, Conflict, Rejected }", false),
        ("enum Trouble { Fault(Fault), Circumstance(Lost, Late, Crash) }", false),
    ] {
        let found = enums(&tokens(text));
        assert_eq!(found.len(), 1, "{text}");
        assert_eq!(lists_faults(&found[0].0, &found[0].1), is_list, "{text}: {found:?}");
    }
}

#[test]
fn violations_name_their_line() {
    assert_eq!(
        made_up("store/redis.rs", "\nuse crate::{\n    error::Error,\n    run::Driver,\n};"),
        ["store/redis.rs:4: `run::Driver`; `store` is below `run`"]
    );
}
