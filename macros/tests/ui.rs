//! The compiler's messages about an attribute that's used wrongly. If another compiler words them differently,
//! `TRYBUILD=overwrite cargo test --package lambda-idempotency-macros` updates the expected texts.

#[test]
fn mistakes_are_explained_where_they_are() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/pass.rs");
    cases.compile_fail("tests/ui/attribute.rs");
    cases.compile_fail("tests/ui/types.rs");
}
