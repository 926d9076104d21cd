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
    /// The names of functions that the compiler evaluates. They must stay `const`, so they have no switches.
    constant: HashSet<String>,
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
    /// The tree in `folder`, whose files come from `source`.
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

    /// Writes the mutants into the tree, and leaves some out until the tree compiles. Begins with the findings of an
    /// earlier run, if they're in the file `learned`.
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
                let texts: Vec<_> = errors.iter().filter_map(|error| error["rendered"].as_str()).collect();
                return Err(Failed::new(format!("no mutant explains these errors:\n{}", texts.join("\n"))));
            }
        }
        Err(Failed::new("the sources still don't compile after forty rounds".to_owned()))
    }

    /// Builds the tests, and returns their programs.
    pub(crate) fn tests(&self) -> Result<Vec<PathBuf>, Failed> {
        let messages = self.cargo(&["test", "--no-run"])?;
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

    /// The errors of the compiler.
    fn errors(&self) -> Result<Vec<Value>, Failed> {
        let messages = self.cargo(&["check", "--lib"])?;
        let errors = messages.into_iter().map(|mut message| message["message"].take());
        Ok(errors
            .filter(|message| message["level"] == "error" && message["spans"] != serde_json::json!([]))
            .collect())
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

    fn cargo(&self, arguments: &[&str]) -> Result<Vec<Value>, Failed> {
        let output = Command::new("cargo")
            .args(arguments)
            .args(["--package", PACKAGE, "--all-features", "--locked", "--message-format=json", "--quiet"])
            .env("CARGO_INCREMENTAL", "0")
            .current_dir(self.folder)
            .stderr(Stdio::inherit())
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }
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
/// Whether the mutant with this number is chosen. Logs each number once, if the environment names a file for them.
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
