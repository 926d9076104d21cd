//! Writes every mutant into the sources, each behind a switch.
//!
//! `a < b` becomes `(if crate::mutant(7) { a <= b } else { a < b })`, and a function whose result is replaced begins with
//! `if crate::mutant(8) { return Ok(()); }`. So one build has all mutants, and an environment variable picks one.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::Range,
};

use syn::{Expr, Pat, spanned::Spanned as _, visit::Visit};

use crate::{
    Failed,
    list::{Mutant, Place},
};

/// A file with its switches.
#[derive(Debug)]
pub(crate) struct Switched {
    pub(crate) text: String,
    /// The number of each written mutant, and its range in `text`, in bytes.
    pub(crate) written: Vec<(usize, Range<usize>)>,
}

/// Writes `mutants` into the file with this text, except those in `uncompiled`. The functions with a name in `constant`
/// stay `const`, and have no switches.
pub(crate) fn switch(
    text: &str,
    mutants: &[(usize, &Mutant)],
    uncompiled: &HashMap<usize, String>,
    constant: &HashSet<String>,
) -> Result<Switched, Failed> {
    let syntax = syn::parse_file(text).map_err(|error| Failed::new(format!("doesn't parse: {error}")))?;
    let lines = Lines::of(text);
    let mut sites = Sites {
        text,
        constant,
        edits: Vec::new(),
        functions: Vec::new(),
        in_constant: 0,
        at: HashMap::new(),
        bodies: Vec::new(),
    };
    for &(id, mutant) in mutants.iter().filter(|(id, _)| !uncompiled.contains_key(id)) {
        let range = lines.byte(mutant.span.start)..lines.byte(mutant.span.end);
        if mutant.genre == "FnValue" {
            // A function that returns `impl Trait` can't return a second type, so the mutant wouldn't compile.
            if !mutant.function.as_ref().is_some_and(|function| function.return_type.contains("impl ")) {
                sites.bodies.push((id, range, mutant));
            }
        } else {
            sites.at.entry((site(&mutant.genre), range.start)).or_default().push((id, range, mutant));
        }
    }
    sites.visit_file(&syntax);
    sites.add_bodies();
    Ok(sites.written())
}

/// The kind of place at which a mutant is written.
fn site(genre: &str) -> &'static str {
    match genre {
        "MatchArm" => "arm",
        "MatchArmGuard" => "guard",
        _ => "expression",
    }
}

/// Converts a place (line and column) to a position in bytes.
struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn of(text: &'a str) -> Self {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { text, starts }
    }

    fn byte(&self, place: Place) -> usize {
        let start = self.starts.get(place.line - 1).copied().unwrap_or(self.text.len());
        let rest = &self.text[start..];
        start + rest.char_indices().nth(place.column - 1).map_or(rest.len(), |(at, _)| at)
    }
}

/// A change of the text: writes `before` and `after` around the range, or instead of it if `removes` is set.
struct Edit {
    range: Range<usize>,
    before: Vec<(Option<usize>, String)>,
    after: &'static str,
    removes: bool,
}

/// A mutant, with its number and the range of bytes that it replaces.
type Found<'a> = (usize, Range<usize>, &'a Mutant);

struct Sites<'a> {
    text: &'a str,
    constant: &'a HashSet<String>,
    edits: Vec<Edit>,
    /// Each function's body, and the range of its `const` keyword, if it has one. Functions that must stay `const`
    /// aren't in the list.
    functions: Vec<(Range<usize>, Option<Range<usize>>)>,
    in_constant: usize,
    at: HashMap<(&'static str, usize), Vec<Found<'a>>>,
    bodies: Vec<Found<'a>>,
}

impl Sites<'_> {
    fn function(&mut self, signature: &syn::Signature, block: &syn::Block, visit: impl FnOnce(&mut Self)) {
        let body = block.span().byte_range();
        let is_kept = signature.constness.is_some() && self.constant.contains(&signature.ident.to_string());
        if is_kept {
            self.constantly(visit);
        } else {
            self.functions.push((body, signature.constness.as_ref().map(|token| token.span.byte_range())));
            visit(self);
        }
    }

    /// Visits code that the compiler evaluates at compile time. Such code can't have switches.
    fn constantly(&mut self, visit: impl FnOnce(&mut Self)) {
        self.in_constant += 1;
        visit(self);
        self.in_constant -= 1;
    }

    /// Puts the mutants of the expression `range` behind switches. `at` gives the positions at which these mutants
    /// begin.
    fn expression(&mut self, range: Range<usize>, at: impl Iterator<Item = usize>) {
        let mut before = Vec::new();
        for at in at {
            for (id, mutated, mutant) in self.at.remove(&("expression", at)).unwrap_or_default() {
                let (head, tail) =
                    (&self.text[range.start..mutated.start], &self.text[mutated.end..range.end]);
                let opening = if before.is_empty() { "(if" } else { " else if" };
                before.push((
                    Some(id),
                    format!("{opening} crate::mutant({id}) {{ {head}{}{tail} }}", mutant.replacement),
                ));
            }
        }
        if self.in_constant == 0 && !before.is_empty() {
            before.push((None, " else { ".to_owned()));
            self.edits.push(Edit { range, before, after: " })", removes: false });
        }
    }

    /// For each mutant that replaces a function's result, writes an early `return` at the beginning of the function's
    /// body. Removes the `const` of each function that has a switch.
    fn add_bodies(&mut self) {
        let mut before: BTreeMap<usize, Vec<_>> = BTreeMap::new();
        for (id, range, mutant) in std::mem::take(&mut self.bodies) {
            let around = |body: &Range<usize>| body.start < range.start && range.end < body.end;
            let body = self.functions.iter().map(|(body, _)| body).filter(|body| around(body));
            if let Some(body) = body.min_by_key(|body| body.len()) {
                let text = format!(" if crate::mutant({id}) {{ return {}; }}", mutant.replacement);
                before.entry(body.start + 1).or_default().push((Some(id), text));
            }
        }
        self.edits.extend(before.into_iter().map(|(at, before)| Edit {
            range: at..at,
            before,
            after: "",
            removes: false,
        }));
        for (body, constness) in &self.functions {
            if let Some(range) = constness
                && self.edits.iter().any(|edit| body.start < edit.range.start && edit.range.end < body.end)
            {
                self.edits.push(Edit { range: range.clone(), before: Vec::new(), after: "", removes: true });
            }
        }
    }

    fn written(mut self) -> Switched {
        // Outer edits come first. Edits of the same range keep the visitor's order, from the outside to the inside.
        self.edits.sort_by_key(|edit| (edit.range.start, std::cmp::Reverse(edit.range.end)));
        let mut switched = Switched { text: String::new(), written: Vec::new() };
        render(self.text, 0..self.text.len(), &self.edits, &mut switched);
        switched
    }
}

/// Writes this range of the text with its edits applied. `edits` are the edits in this range, sorted.
fn render(text: &str, range: Range<usize>, mut edits: &[Edit], to: &mut Switched) {
    let mut at = range.start;
    while let Some((edit, rest)) = edits.split_first() {
        to.text.push_str(&text[at..edit.range.start]);
        for (id, written) in &edit.before {
            let start = to.text.len();
            to.text.push_str(written);
            to.written.extend(id.map(|id| (id, start..to.text.len())));
        }
        let inner = rest.iter().take_while(|other| other.range.start < edit.range.end).count();
        if !edit.removes {
            render(text, edit.range.clone(), &rest[..inner], to);
        }
        to.text.push_str(edit.after);
        at = edit.range.end;
        edits = &rest[inner..];
    }
    to.text.push_str(&text[at..range.end]);
}

/// Whether a condition has a `let`, which can't be put into parentheses.
fn has_let(condition: &Expr) -> bool {
    match condition {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Sites<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block, |sites| syn::visit::visit_item_fn(sites, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, &item.block, |sites| syn::visit::visit_impl_item_fn(sites, item));
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        match &item.default {
            Some(block) => {
                self.function(&item.sig, block, |sites| syn::visit::visit_trait_item_fn(sites, item))
            }
            None => syn::visit::visit_trait_item_fn(self, item),
        }
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.constantly(|sites| syn::visit::visit_item_const(sites, item));
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.constantly(|sites| syn::visit::visit_impl_item_const(sites, item));
    }

    fn visit_trait_item_const(&mut self, item: &'ast syn::TraitItemConst) {
        self.constantly(|sites| syn::visit::visit_trait_item_const(sites, item));
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.constantly(|sites| syn::visit::visit_item_static(sites, item));
    }

    fn visit_type_array(&mut self, array: &'ast syn::TypeArray) {
        self.constantly(|sites| syn::visit::visit_type_array(sites, array));
    }

    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
        self.constantly(|sites| sites.visit_expr(&repeat.len));
    }

    fn visit_expr_const(&mut self, block: &'ast syn::ExprConst) {
        self.constantly(|sites| syn::visit::visit_expr_const(sites, block));
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        if !has_let(&binary.left) && !has_let(&binary.right) {
            let at = binary.op.span().byte_range().start;
            self.expression(binary.span().byte_range(), std::iter::once(at));
        }
        syn::visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &'ast syn::ExprUnary) {
        let range = unary.span().byte_range();
        self.expression(range.clone(), std::iter::once(range.start));
        syn::visit::visit_expr_unary(self, unary);
    }

    fn visit_expr_struct(&mut self, expression: &'ast syn::ExprStruct) {
        let at: Vec<_> = expression.fields.iter().map(|field| field.span().byte_range().start).collect();
        self.expression(expression.span().byte_range(), at.into_iter());
        syn::visit::visit_expr_struct(self, expression);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        let range = arm.span().byte_range();
        let without = self.at.remove(&("arm", range.start)).unwrap_or_default();
        let mut before: Vec<_> =
            without.iter().map(|(id, ..)| (Some(*id), format!("!crate::mutant({id})"))).collect();
        if let Pat::Guard(pattern) = &arm.pat {
            let guard = pattern.guard.span().byte_range();
            let replaced = self.at.remove(&("guard", guard.start)).unwrap_or_default();
            if !before.is_empty() {
                before.push((None, " && ".to_owned()));
            }
            let mut after = "";
            if !has_let(&pattern.guard) {
                before.push((None, "(".to_owned()));
                for (id, _, mutant) in &replaced {
                    let text = match mutant.replacement.as_str() {
                        "true" => format!("crate::mutant({id}) || "),
                        _ => format!("!crate::mutant({id}) && "),
                    };
                    before.push((Some(*id), text));
                }
                before.push((None, "(".to_owned()));
                after = "))";
            }
            if self.in_constant == 0 && before.iter().any(|(id, _)| id.is_some()) {
                self.edits.push(Edit { range: guard, before, after, removes: false });
            }
        } else if self.in_constant == 0 && !before.is_empty() {
            let end = arm.pat.span().byte_range().end;
            before.insert(0, (None, " if ".to_owned()));
            self.edits.push(Edit { range: end..end, before, after: "", removes: false });
        }
        syn::visit::visit_arm(self, arm);
    }
}

#[cfg(test)]
mod tests;
