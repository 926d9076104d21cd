//! Compiles `src/memory.c`, which sets up the C library's allocator, and links it into the program.

fn main() {
    println!("cargo:rerun-if-changed=src/memory.c");
    for object in cc::Build::new().file("src/memory.c").compile_intermediates() {
        println!("cargo:rustc-link-arg-bins={}", object.display());
    }
}
