#![no_main]

#[global_allocator]
static MEMORY: fuzz_entries::memory::Counted = fuzz_entries::memory::Counted;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_entries::run("gguf", bytes));
