//! Prints the instructions of modules that the interpreter does not have: `unknown FILE...`.

use std::collections::BTreeMap;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut unknown = BTreeMap::new();
    for path in std::env::args().skip(1) {
        let text = std::fs::read_to_string(&path)?;
        let module = ptx::Module::read(&text, &mut |_| 0).map_err(|error| format!("{path}: {error}"))?;
        for kernel in module.kernels() {
            for text in kernel.unknown() {
                let opcode = text.split(' ').next().unwrap_or(text).to_owned();
                unknown.entry(opcode).or_insert_with(|| (0, text.to_owned(), kernel.name().to_owned())).0 +=
                    1;
            }
        }
    }
    for (opcode, (times, text, kernel)) in unknown {
        println!("{times:6} {opcode}: `{text}` in {kernel}");
    }
    Ok(())
}
