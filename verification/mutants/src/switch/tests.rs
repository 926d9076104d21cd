use super::*;
use crate::list::{Function, Span};

const SOURCE: &str = "\
const fn limit(n: u8) -> bool {
    n < 3 && !matches!(n, 1)
}
const MOST: u8 = 2 * 3;
fn all(n: u8) -> Settings {
    match n {
        0 if limit(n) => Settings { size: n, ..Settings::new() },
        MOST => Settings::new(),
        _ => Settings::new(),
    }
}
";

/// Makes a mutant that replaces the text `mutated`. Looks for it from the beginning of the text `after` on.
fn mutant(genre: &str, after: &str, mutated: &str, replacement: &str) -> Mutant {
    let start = SOURCE.find(after).unwrap();
    let start = start + SOURCE[start..].find(mutated).unwrap();
    let place = |at: usize| {
        let line = SOURCE[..at].matches('\n').count() + 1;
        Place { line, column: at - SOURCE[..at].rfind('\n').map_or(0, |at| at + 1) + 1 }
    };
    Mutant {
        file: "src/sample.rs".to_owned(),
        genre: genre.to_owned(),
        name: format!("{genre} {mutated}"),
        replacement: replacement.to_owned(),
        span: Span { start: place(start), end: place(start + mutated.len()) },
        function: Some(Function { return_type: "-> bool".to_owned() }),
    }
}

fn switched(mutants: &[Mutant], constant: &[&str]) -> Switched {
    let numbered: Vec<_> = mutants.iter().enumerate().collect();
    let constant = constant.iter().map(|&name| name.to_owned()).collect();
    switch(SOURCE, &numbered, &HashMap::new(), &constant).unwrap()
}

#[test]
fn every_kind_of_mutant_gets_a_switch() {
    let mutants = [
        mutant("FnValue", "n < 3", "n < 3 && !matches!(n, 1)", "true"),
        mutant("BinaryOperator", "n < 3", "<", "<="),
        mutant("BinaryOperator", "n < 3", "&&", "||"),
        mutant("UnaryOperator", "n < 3", "!", ""),
        mutant("MatchArmGuard", "0 if", "limit(n)", "true"),
        mutant("StructField", "size", "size: n,", ""),
        mutant("MatchArm", "MOST =>", "MOST => Settings::new(),", ""),
    ];
    let Switched { text, written } = switched(&mutants, &[]);
    let expected = " fn limit(n: u8) -> bool { if crate::mutant(0) { return true; }
    (if crate::mutant(2) { n < 3 || !matches!(n, 1) } else { (if crate::mutant(1) { n <= 3 } else { n < 3 }) && \
                    (if crate::mutant(3) { matches!(n, 1) } else { !matches!(n, 1) }) })
}
const MOST: u8 = 2 * 3;
fn all(n: u8) -> Settings {
    match n {
        0 if (crate::mutant(4) || (limit(n))) => \
                    (if crate::mutant(5) { Settings {  ..Settings::new() } } else { Settings { size: n, ..Settings::new() } }),
        MOST if !crate::mutant(6) => Settings::new(),
        _ => Settings::new(),
    }
}
";
    assert_eq!(text, expected);
    let mut ids: Vec<_> = written.iter().map(|(id, _)| *id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [0, 1, 2, 3, 4, 5, 6]);
}

#[test]
fn constants_have_no_switches() {
    let mutants = [mutant("BinaryOperator", "2 * 3", "*", "+"), mutant("BinaryOperator", "n < 3", "<", "<=")];
    let Switched { text, written } = switched(&mutants, &["limit"]);
    assert_eq!((&*text, written.len()), (SOURCE, 0));
}
