//! Training state that survives: logical (parameter, slot) stores committed by one rename, resume and export
