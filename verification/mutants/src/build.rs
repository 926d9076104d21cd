//! Builds the sources with all mutants in them, and leaves out mutants that don't compile.

use std::{
    collections::{HashMap, HashSet},
    fs,
    ops::Range,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use syn::{spanned::Spanned as _, visit::Visit};

use crate::{
    Failed,
    list::Mutant,
    run::{CHOSEN, REACHED},
    switch::{Switched, switch},
};

const PACKAGE: &str = "lambda-idempotency";

/// The compiler's findings.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Learned {
    /// The mutants that don't compile, and the reason.
    uncompiled: HashMap<usize, String>,
    /// The names of functions that the compiler evaluates at compile time. These functions must stay `const`, so they
    /// have no switches.
    constant: HashSet<String>,
}

/// The result of one call of Cargo.
struct Built {
    messages: Vec<Value>,
    /// Whether Cargo built everything.
    is_complete: bool,
}

/// A copy of the sources, into which the mutants are written.
#[derive(Debug)]
pub(crate) struct Tree<'a> {
    folder: &'a Path,
    mutants: &'a [Mutant],
    /// The text of each mutated file, without mutants.
    originals: HashMap<&'a str, String>,
    learned: Learned,
    files: HashMap<&'a str, Switched>,
}

impl<'a> Tree<'a> {
    /// Prepares the tree in `folder`, a copy of `source`: adds the function that every switch calls.
    pub(crate) fn new(source: &Path, folder: &'a Path, mutants: &'a [Mutant]) -> Result<Self, Failed> {
        let mut originals = HashMap::new();
        for Mutant { file, .. } in mutants {
            if !originals.contains_key(file.as_str()) {
                originals.insert(file.as_str(), fs::read_to_string(source.join(file))?);
            }
        }
        let root = fs::read_to_string(source.join("src/lib.rs"))?;
        replace(&folder.join("src/lib.rs"), &format!("{root}\n{}", switching(mutants.len())))?;
        Ok(Self { folder, mutants, originals, learned: Learned::default(), files: HashMap::new() })
    }

    /// The compiler's error about this mutant, if the mutant doesn't compile.
    pub(crate) fn uncompiled(&self, id: usize) -> Option<&str> {
        self.learned.uncompiled.get(&id).map(String::as_str)
    }

    /// The mutants that have a switch.
    pub(crate) fn switched(&self) -> HashSet<usize> {
        self.files.values().flat_map(|file| file.written.iter().map(|(id, _)| *id)).collect()
    }

    /// Writes the mutants into the tree and compiles it. Leaves out the mutants that cause errors, and repeats this
    /// until the tree compiles. Begins with the findings of an earlier run, if they're in the file `learned`.
    pub(crate) fn compile(&mut self, learned: &Path) -> Result<(), Failed> {
        if let Ok(text) = fs::read_to_string(learned) {
            self.learned = serde_json::from_str(&text)?;
        }
        for round in 1..=40 {
            self.write()?;
            let errors = self.errors()?;
            println!("round {round}: {} switches, {} errors", self.switched().len(), errors.len());
            if errors.is_empty() {
                return Ok(fs::write(learned, serde_json::to_string(&self.learned)?)?);
            }
            let before = (self.learned.uncompiled.len(), self.learned.constant.len());
            for error in &errors {
                self.leave_out(error);
            }
            if (self.learned.uncompiled.len(), self.learned.constant.len()) == before {
                return Err(Failed::new(format!("no mutant explains these errors:\n{}", shown(&errors))));
            }
        }
        Err(Failed::new("the sources still don't compile after forty rounds".to_owned()))
    }

    /// Builds the tests, and returns their programs. A program that doesn't compile is an error: without its tests, the
    /// mutants that they catch would survive.
    pub(crate) fn tests(&self) -> Result<Vec<PathBuf>, Failed> {
        let Built { messages, is_complete } = self.cargo(&["test", "--no-run"])?;
        if !is_complete {
            let errors = errors_in(messages);
            return Err(Failed::new(format!("Cargo couldn't build every test program:\n{}", shown(&errors))));
        }
        let programs = messages.iter().filter(|message| message["profile"]["test"] == true);
        let programs: Vec<_> =
            programs.filter_map(|message| message["executable"].as_str()).map(PathBuf::from).collect();
        match programs.is_empty() {
            true => Err(Failed::new("Cargo built no tests".to_owned())),
            false => Ok(programs),
        }
    }

    fn write(&mut self) -> Result<(), Failed> {
        for (&file, text) in &self.originals {
            let here = self.mutants.iter().enumerate().filter(|(_, mutant)| mutant.file == file);
            let here: Vec<_> = here.collect();
            let switched = switch(text, &here, &self.learned.uncompiled, &self.learned.constant)
                .map_err(|error| Failed::new(format!("{file}: {error}")))?;
            replace(&self.folder.join(file), &switched.text)?;
            self.files.insert(file, switched);
        }
        Ok(())
    }

    /// Returns the compiler's errors. The mutants that don't compile cause these errors.
    fn errors(&self) -> Result<Vec<Value>, Failed> {
        let Built { messages, is_complete } = self.cargo(&["check", "--lib"])?;
        let errors = errors_in(messages);
        match errors.is_empty() && !is_complete {
            true => Err(Failed::new("Cargo couldn't check the library; see its message above".to_owned())),
            false => Ok(errors),
        }
    }

    /// Leaves out the cause of this error: a mutant, or all switches of a function that must be `const`.
    fn leave_out(&mut self, error: &Value) {
        let text = error["message"].as_str().unwrap_or_default();
        if text.starts_with("cannot call non-const") {
            let path = text.split('`').nth(1).unwrap_or_default();
            let name = path.rsplit("::").next().unwrap_or_default();
            self.learned.constant.insert(name.to_owned());
            return;
        }
        // E0004: the match isn't exhaustive, because switches can disable some of its arms.
        let is_incomplete = error["code"]["code"] == "E0004";
        for span in error["spans"].as_array().into_iter().flatten() {
            let file = self.files.get(span["file_name"].as_str().unwrap_or_default());
            let byte = |name: &str| span[name].as_u64().unwrap_or(0) as usize;
            let Some(file) = file else { continue };
            let touched = match is_incomplete {
                true => arms(&file.text, byte("byte_start")),
                false => std::iter::once(byte("byte_start")..byte("byte_end")).collect(),
            };
            let is_touched = |range: &Range<usize>| {
                touched.iter().any(|touched| range.start < touched.end && touched.start < range.end)
            };
            let ids = file.written.iter().filter(|(_, range)| is_touched(range)).map(|(id, _)| *id);
            let ids = ids.filter(|id| !is_incomplete || self.mutants[*id].genre == "MatchArm");
            self.learned.uncompiled.extend(ids.map(|id| (id, text.to_owned())));
        }
    }

    fn cargo(&self, arguments: &[&str]) -> Result<Built, Failed> {
        let output = Command::new("cargo")
            .args(arguments)
            .args(["--package", PACKAGE, "--all-features", "--locked", "--message-format=json", "--quiet"])
            .env("CARGO_INCREMENTAL", "0")
            .current_dir(self.folder)
            .stderr(Stdio::inherit())
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let messages = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        Ok(Built { messages, is_complete: output.status.success() })
    }
}

/// Returns the compiler's errors from Cargo's messages. Leaves out errors that don't point at a place in the sources.
fn errors_in(messages: Vec<Value>) -> Vec<Value> {
    let errors = messages.into_iter().map(|mut message| message["message"].take());
    errors
        .filter(|message| message["level"] == "error" && message["spans"] != serde_json::json!([]))
        .collect()
}

/// The errors as the compiler prints them.
fn shown(errors: &[Value]) -> String {
    errors.iter().filter_map(|error| error["rendered"].as_str()).collect::<Vec<_>>().join("\n")
}

/// Writes a file only if its text changes, so that Cargo doesn't compile unchanged files.
fn replace(path: &Path, text: &str) -> Result<(), Failed> {
    if fs::read_to_string(path).is_ok_and(|existing| existing == text) {
        return Ok(());
    }
    Ok(fs::write(path, text)?)
}

/// The patterns of the match whose scrutinee begins at this byte.
fn arms(text: &str, scrutinee: usize) -> Vec<Range<usize>> {
    struct Arms(usize, Vec<Range<usize>>);
    impl<'ast> Visit<'ast> for Arms {
        fn visit_expr_match(&mut self, expression: &'ast syn::ExprMatch) {
            if expression.expr.span().byte_range().start == self.0 {
                self.1.extend(expression.arms.iter().map(|arm| arm.pat.span().byte_range()));
            }
            syn::visit::visit_expr_match(self, expression);
        }
    }
    let mut arms = Arms(scrutinee, Vec::new());
    if let Ok(file) = syn::parse_file(text) {
        arms.visit_file(&file);
    }
    arms.1
}

/// Returns the source of the function that every switch calls.
fn switching(count: usize) -> String {
    let words = count / 64 + 1;
    format!(
        r#"
/// Whether the mutant with this number is chosen. Logs each number once, if the environment names a log file.
#[doc(hidden)]
#[allow(clippy::all, reason = "written by the mutants' build")]
pub fn mutant(id: u32) -> bool {{
    use std::{{fs::File, io::Write as _, sync::{{OnceLock, atomic::{{AtomicU64, Ordering}}}}}};
    static CHOSEN: OnceLock<(u32, Option<File>)> = OnceLock::new();
    static REACHED: [AtomicU64; {words}] = [const {{ AtomicU64::new(0) }}; {words}];
    let (chosen, log) = CHOSEN.get_or_init(|| {{
        let chosen = std::env::var("{CHOSEN}").ok().and_then(|id| id.parse().ok()).unwrap_or(u32::MAX);
        let log = std::env::var("{REACHED}").ok();
        (chosen, log.and_then(|path| File::options().append(true).open(path).ok()))
    }});
    let bit = 1 << (id % 64);
    if let Some(mut log) = log.as_ref()
        && REACHED[id as usize / 64].fetch_or(bit, Ordering::Relaxed) & bit == 0
    {{
        let _ = log.write_all(format!("{{id}}\n").as_bytes());
    }}
    id == *chosen
}}
"#
    )
}

#[cfg(test)]
mod tests {
    use std::{env, process};

    use super::*;

    /// A folder that's deleted when the test drops it.
    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Self {
            let folder = env::temp_dir().join(format!("mutants-build-{}", process::id()));
            let _ = fs::remove_dir_all(&folder);
            for part in ["src", "tests"] {
                fs::create_dir_all(folder.join(part)).unwrap();
            }
            Self(folder)
        }

        fn write(&self, file: &str, text: &str) {
            fs::write(self.0.join(file), text).unwrap();
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _removed = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn failed_builds_are_errors() {
        let folder = Folder::new();
        let package = format!("name = \"{PACKAGE}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n");
        folder.write("Cargo.toml", &format!("[package]\n{package}[workspace]\n"));
        folder.write("src/lib.rs", "");
        folder.write("tests/good.rs", "#[test]\nfn good() {}\n");
        folder.write("tests/broken.rs", "#[test]\nfn broken() { no_such_function() }\n");
        let mut lock = Command::new("cargo");
        let lock = lock.args(["generate-lockfile", "--offline"]).current_dir(&folder.0).status();
        assert!(lock.unwrap().success());
        let tree = Tree::new(&folder.0, &folder.0, &[]).unwrap();
        assert!(tree.errors().unwrap().is_empty());
        let error = tree.tests().unwrap_err().to_string();
        assert!(error.contains("every test program") && error.contains("no_such_function"), "{error}");
        folder.write("Cargo.toml", "not a manifest");
        assert!(tree.errors().unwrap_err().to_string().contains("couldn't check the library"));
    }
}
