//! GGUF files: header, metadata, the values of small tensors.

use burnish_gguf::GgufFile;

use crate::given::{folder, write};

/// Elements of a tensor beyond which its values are left out.
const SMALL: usize = 1 << 20;

pub(crate) fn read(bytes: &[u8]) {
    let folder = folder();
    write(folder.path(), "a.gguf", bytes);
    let Ok(file) = GgufFile::open(folder.path().join("a.gguf")) else { return };
    for (key, _) in file.metadata() {
        assert!(file.get(key).is_some(), "{key}");
    }
    for tensor in file.tensors().iter().filter(|tensor| tensor.elements() <= SMALL) {
        if let Ok(values) = file.values(&tensor.name) {
            assert_eq!(values.len(), tensor.elements(), "{}", tensor.name);
        }
    }
}
