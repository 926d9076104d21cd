//! Reads Rust sources, and finds which modules a file names. The reader skips comments and literals, expands `use`
//! trees, and resolves `self` and `super`.

use std::{fs, path::Path};

/// A file's path under the requested folder, and its text.
pub type Source = (String, String);

/// The repository's folder.
pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Every Rust file under `folder`.
pub fn read_under(folder: &str) -> Vec<Source> {
    let (base, mut folders, mut sources) = (root().join(folder), vec![root().join(folder)], vec![]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(&base).unwrap().to_string_lossy().replace('\\', "/");
                sources.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    sources.sort();
    sources
}

/// A path that a file names, written from the crate's root, with its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The path's words, such as `store`, `memory`, `MemoryStore`.
    pub path: Vec<String>,
    /// The line, from 1.
    pub line: usize,
}

/// A word or a sign with its line. `::` is one sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The word or sign.
    pub text: String,
    /// The line, from 1.
    pub line: usize,
}

/// Returns the tokens of `source` without `#[cfg(test)]` code, which isn't built into the library.
pub fn shipped(source: &str) -> Vec<Token> {
    let tokens = tokens(source);
    let mut shipped = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if follows(&tokens[at..], &["#", "[", "cfg", "(", "test", ")", "]"]) {
            at = end_of_item(&tokens, at + 7);
        } else {
            shipped.push(tokens[at].clone());
            at += 1;
        }
    }
    shipped
}

/// Whether `tokens` begin with `words`.
pub fn follows(tokens: &[Token], words: &[&str]) -> bool {
    tokens.len() >= words.len() && tokens.iter().zip(words).all(|(token, word)| token.text == *word)
}

/// Returns every path in `tokens` that begins with `crate`, `self`, `super`, or a module that the file itself
/// declares. `module` is the path of the file's own module.
pub fn paths(tokens: &[Token], module: &[String]) -> Vec<Named> {
    let children = children(tokens);
    paths_from(tokens, &|word, inline| {
        let here: Vec<String> = module.iter().chain(inline).cloned().collect();
        match word {
            "crate" => Some(vec![]),
            "self" => Some(here),
            "super" => Some(here[..here.len().saturating_sub(1)].to_vec()),
            child if children.iter().any(|name| name == child) => {
                Some(module.iter().cloned().chain([child.to_owned()]).collect())
            }
            _ => None,
        }
    })
}

/// Returns every path in `tokens` that begins with one of `crates`.
pub fn paths_of(tokens: &[Token], crates: &[&str]) -> Vec<Named> {
    paths_from(tokens, &|word, _| crates.contains(&word).then(|| vec![word.to_owned()]))
}

/// Gets a path's first word and the inline modules around it. Returns the beginning of the full path, or `None` to
/// leave the path out.
type Start<'a> = &'a dyn Fn(&str, &[String]) -> Option<Vec<String>>;

/// Returns every path in `tokens` for which `start` returns a beginning.
fn paths_from(tokens: &[Token], start: Start<'_>) -> Vec<Named> {
    let mut named = Vec::new();
    // The enclosing inline modules, each with the depth of its brace.
    let mut inline: Vec<(String, usize)> = Vec::new();
    let mut depth = 0;
    let mut at = 0;
    while at < tokens.len() {
        let after_colons = at > 0 && tokens[at - 1].text == "::";
        match tokens[at].text.as_str() {
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                inline.retain(|(_, opened)| *opened <= depth);
            }
            "mod" if follows(&tokens[(at + 2).min(tokens.len())..], &["{"]) => {
                inline.push((tokens[at + 1].text.clone(), depth + 1));
            }
            word if !after_colons && follows(&tokens[at + 1..], &["::"]) => {
                let around: Vec<String> = inline.iter().map(|(name, _)| name.clone()).collect();
                if let Some(start) = start(word, &around) {
                    spread(tokens, at + 2, start, &mut named);
                }
            }
            _ => {}
        }
        at += 1;
    }
    named
}

/// Returns the names that the crate's root re-exports, each with its full path.
pub fn re_exports(root: &[Token]) -> Vec<(String, Vec<String>)> {
    let name = |path: &Named| path.path.last().cloned().unwrap_or_default();
    paths(root, &[]).into_iter().map(|path| (name(&path), path.path)).collect()
}

/// Returns the modules that these tokens declare with `mod name;`.
fn children(tokens: &[Token]) -> Vec<String> {
    let declared = tokens.windows(3).filter(|three| three[0].text == "mod" && three[2].text == ";");
    declared.map(|three| three[1].text.clone()).collect()
}

/// Follows a path or a `use` tree from `at`, after a `::`. Adds each path that it finds to `named`, and returns the
/// position after the path or tree.
fn spread(tokens: &[Token], mut at: usize, start: Vec<String>, named: &mut Vec<Named>) -> usize {
    let line = tokens.get(at).map_or(0, |token| token.line);
    let mut path = start;
    loop {
        match tokens.get(at).map(|token| token.text.as_str()) {
            Some("super") => {
                path.pop();
            }
            Some("self") => {}
            Some("{") => {
                at += 1;
                while tokens.get(at).is_some_and(|token| token.text != "}") {
                    at =
                        if tokens[at].text == "," { at + 1 } else { spread(tokens, at, path.clone(), named) };
                }
                return at + 1;
            }
            Some(word) if is_word(word) => path.push(word.to_owned()),
            Some("*") => {
                path.push("*".to_owned());
                named.push(Named { path, line });
                return at + 1;
            }
            // `<`, or another token that isn't a part of a path.
            _ => {
                named.push(Named { path, line });
                return at + 1;
            }
        }
        at += 1;
        if tokens.get(at).is_none_or(|token| token.text != "::") {
            named.push(Named { path, line });
            return match follows(&tokens[at.min(tokens.len())..], &["as"]) {
                true => at + 2,
                false => at,
            };
        }
        at += 1;
    }
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Returns the position after the item at `at`: after its `;` or its closing brace.
fn end_of_item(tokens: &[Token], mut at: usize) -> usize {
    let mut depth = 0usize;
    while let Some(token) = tokens.get(at) {
        at += 1;
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" => depth = depth.saturating_sub(1),
            "}" => {
                depth = depth.saturating_sub(1);
                // A `use` tree has braces too, but ends only at its `;`.
                if depth == 0 && tokens.get(at).is_none_or(|next| next.text != ";") {
                    break;
                }
            }
            ";" if depth == 0 => break,
            _ => {}
        }
    }
    at
}

/// Returns the tokens of `source`.
pub fn tokens(source: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let (mut rest, mut line) = (source, 1);
    while let Some(first) = rest.chars().next() {
        let length = match first {
            _ if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            _ if rest.starts_with("/*") => block_comment(rest),
            _ if literal(rest).is_some() => literal(rest).unwrap_or(1),
            _ if first.is_alphanumeric() || first == '_' => {
                rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
            }
            _ if rest.starts_with("::") => 2,
            _ => first.len_utf8(),
        };
        let (text, behind) = rest.split_at(length);
        let shows = !first.is_whitespace() && !text.starts_with("//") && !text.starts_with("/*");
        if shows && literal(rest).is_none() {
            tokens.push(Token { text: text.to_owned(), line });
        }
        line += text.matches('\n').count();
        rest = behind;
    }
    tokens
}

fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest[at..].starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    at
}

/// Returns the length of the string or character literal at the start of `rest`. A lifetime isn't a
/// literal.
fn literal(rest: &str) -> Option<usize> {
    let prefix = ["br", "cr", "b", "c", "r", ""].into_iter().find(|prefix| {
        rest.strip_prefix(prefix).is_some_and(|behind| behind.starts_with(['"', '\'', '#']))
    })?;
    let behind = &rest[prefix.len()..];
    if prefix.contains('r') {
        let hashes = behind.len() - behind.trim_start_matches('#').len();
        let end = format!("\"{}", "#".repeat(hashes));
        let content = behind[hashes..].strip_prefix('"')?;
        return Some(prefix.len() + hashes + 1 + content.find(&end)? + end.len());
    }
    let quote = behind.chars().next().filter(|quote| *quote != '#')?;
    let mut escaped = false;
    for (at, c) in behind.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return Some(prefix.len() + at + 1),
            // A lifetime: `'a` without a closing quotation mark.
            _ if quote == '\'' && !behind[1..].starts_with('\\') && at > 1 => return None,
            _ => {}
        }
    }
    None
}
