//! Options with the names and defaults of TRL and Transformers: flags over a YAML or TOML file, unknown keys refused with the nearest name.
