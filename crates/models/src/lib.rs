//! Decoder-only language models in Hugging Face's layout: Llama, Mistral, Qwen2, Qwen3 on one generic decoder
