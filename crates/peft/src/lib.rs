//! Parameter-efficient adapters in PEFT's formats: configuration, target matching, LoRA, initialisation, merging
