//! Checks the compiler's messages about wrong uses of the attribute. If a new compiler version words them differently,
//! `TRYBUILD=overwrite cargo test --package lambda-idempotency-macros-ui` updates the expected texts.

#[test]
fn errors_point_at_the_mistake() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/pass.rs");
    cases.compile_fail("tests/ui/attribute.rs");
    cases.compile_fail("tests/ui/types.rs");
}
