mod generate;
mod generate_enum;
mod generate_runtime_enum;
mod generate_struct;
