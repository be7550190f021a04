use std::fs;
use std::path::Path;

use burnish_core::Dtype;
use burnish_weight_files::{FolderWriter, HostTensor, ScaleLayout, WeightFileError, WeightFolder};
use proptest::prelude::*;
use safetensors::tensor::{Dtype as StDtype, TensorView as StView};

use crate::ramp;

fn write(folder: &Path, tensors: &[(&str, &HostTensor)]) {
    let mut writer = FolderWriter::in_place(folder).unwrap();
    let views: Vec<_> = tensors.iter().map(|(n, t)| ((*n).to_owned(), t.view())).collect();
    writer.tensors("model", &views).unwrap();
    writer.commit().unwrap();
}

#[test]
fn same_bytes_as_the_reference_implementation() {
    let all = [
        ("b.f32", ramp(Dtype::F32, &[3, 2]), StDtype::F32),
        ("a.bf16", ramp(Dtype::Bf16, &[5]), StDtype::BF16),
        ("c.f16", ramp(Dtype::F16, &[1, 1, 3]), StDtype::F16),
        ("d.f64", ramp(Dtype::F64, &[2]), StDtype::F64),
        ("e.i64", ramp(Dtype::I64, &[]), StDtype::I64),
        ("f.i32", ramp(Dtype::I32, &[4]), StDtype::I32),
        ("g.u8", ramp(Dtype::U8, &[7]), StDtype::U8),
        ("h.empty", ramp(Dtype::F32, &[0, 8]), StDtype::F32),
    ];
    let theirs = safetensors::serialize(
        all.iter().map(|(n, t, d)| (*n, StView::new(*d, t.shape.clone(), &t.bytes).unwrap())),
        Some([("format".to_owned(), "pt".to_owned())].into()),
    )
    .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let ours: Vec<(&str, &HostTensor)> = all.iter().map(|(n, t, _)| (*n, t)).collect();
    write(dir.path(), &ours);
    assert_eq!(fs::read(dir.path().join("model.safetensors")).unwrap(), theirs);

    let folder = WeightFolder::open(dir.path()).unwrap();
    assert_eq!(folder.metadata()["format"], "pt");
    for (name, tensor, _) in &all {
        assert_eq!(&folder.read(name).unwrap(), tensor);
        assert_eq!(folder.view(name).unwrap(), tensor.view());
        let mut out = vec![0; tensor.bytes.len()];
        folder.read_into(name, &mut out).unwrap();
        assert_eq!(out, tensor.bytes);
    }
    assert!(folder.read_into("g.u8", &mut [0; 6]).unwrap_err().to_string().contains("takes 7 bytes, got 6"));
}

#[test]
fn file_and_index_paths_open_too() {
    let dir = tempfile::tempdir().unwrap();
    let t = ramp(Dtype::F32, &[8, 8]);
    let mut writer = FolderWriter::in_place(dir.path()).unwrap().max_shard_size(300);
    writer.tensors("model", &[("x".into(), t.view()), ("y".into(), t.view())]).unwrap();
    writer.tensors("adapter_model", &[("z".into(), t.view())]).unwrap();
    writer.commit().unwrap();
    for path in [dir.path().to_path_buf(), dir.path().join("model.safetensors.index.json")] {
        let folder = WeightFolder::open(path).unwrap();
        assert_eq!(folder.names().collect::<Vec<_>>(), ["x", "y"]);
        assert_eq!(folder.files().count(), 2);
        assert_eq!(folder.read("y").unwrap(), t);
    }
    let one = WeightFolder::open(dir.path().join("model-00001-of-00002.safetensors")).unwrap();
    assert_eq!(one.names().collect::<Vec<_>>(), ["x"]);
    assert_eq!(WeightFolder::open_stem(dir.path(), "adapter_model").unwrap().read("z").unwrap(), t);
}

#[test]
fn missing_folder_and_missing_weights() {
    let dir = tempfile::tempdir().unwrap();
    let gone = WeightFolder::open(dir.path().join("gone")).unwrap_err();
    assert!(gone.to_string().contains("gone` does not exist"), "{gone}");
    let none = WeightFolder::open(dir.path()).unwrap_err().to_string();
    assert!(none.contains("looked for model.safetensors, model.safetensors.index.json"), "{none}");
    assert!(none.contains("adapter_model.safetensors"), "{none}");
    assert!(!none.contains("does not read"), "{none}");
    fs::write(dir.path().join("pytorch_model.bin"), b"x").unwrap();
    fs::write(dir.path().join("training_args.bin"), b"x").unwrap();
    let bin = WeightFolder::open(dir.path()).unwrap_err().to_string();
    assert!(bin.contains("it holds pytorch_model.bin, which burnish does not read"), "{bin}");
}

#[test]
fn every_truncation_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &[("w", &ramp(Dtype::F32, &[4, 4]))]);
    let path = dir.path().join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    for cut in 0..whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        match WeightFolder::open(dir.path()).unwrap_err() {
            WeightFileError::Truncated { expected, got, .. } => {
                assert_eq!((expected, got), (whole.len() as u64, cut as u64));
            }
            WeightFileError::CorruptHeader { .. } => assert!(cut < whole.len() - 64),
            other => panic!("{cut}: {other}"),
        }
    }
    fs::write(&path, [&whole[..], b"tail"].concat()).unwrap();
    let long = WeightFolder::open(dir.path()).unwrap_err().to_string();
    assert!(
        long.contains(&format!("header describes {} bytes, the file has {}", whole.len(), whole.len() + 4)),
        "{long}"
    );
}

/// A file of this header (padded by nothing) and this many zero bytes of data.
fn craft(header: &str, data: usize) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
    let message = match WeightFolder::open(dir.path()) {
        Ok(_) => String::new(),
        Err(e) => e.to_string(),
    };
    (dir, message)
}

#[test]
fn corrupt_headers_say_how() {
    for (header, data, expected) in [
        ("[1,2]", 0, "not JSON of the expected form"),
        ("{\"a\":{\"dtype\":\"F32\"}}", 0, "missing field `shape`"),
        (
            r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#,
            4,
            "`a` (F32, shape [2]) does not take 4 bytes",
        ),
        (
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#,
            8,
            "data of `a` is at bytes 4..8, expected to start at 0",
        ),
        (
            r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}"#,
            6,
            "data of `b` is at bytes 2..6, expected to start at 4",
        ),
        (
            r#"{"a":{"dtype":"F32","shape":[18446744073709551615,4],"data_offsets":[0,4]}}"#,
            4,
            "does not take 4",
        ),
        (r#"{"a":{"dtype":"U8","shape":[9],"data_offsets":[9,0]}}"#, 0, "does not take 0 bytes"),
    ] {
        let (_dir, message) = craft(header, data);
        assert!(message.contains(expected), "{header}: {message}");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    fs::write(&path, "version https://git-lfs.github.com/spec/v1\noid sha256:0\n").unwrap();
    let lfs = WeightFolder::open(&path).unwrap_err().to_string();
    assert!(lfs.contains("Git LFS pointer"), "{lfs}");
}

#[test]
fn unknown_dtypes_are_refused_only_when_asked_for() {
    let (dir, message) = craft(
        r#"{"a":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[1],"data_offsets":[4,5]},"c":{"dtype":"NEW","shape":[1],"data_offsets":[5,7]}}"#,
        7,
    );
    assert_eq!(message, "");
    let folder = WeightFolder::open(dir.path()).unwrap();
    assert_eq!(folder.read("b").unwrap().bytes, [0]);
    for (name, dtype) in [("a", "F8_E4M3"), ("c", "NEW")] {
        for error in [folder.info(name).unwrap_err(), folder.view(name).unwrap_err()] {
            let text = error.to_string();
            assert!(text.contains(&format!("`{name}`")) && text.contains(dtype), "{text}");
        }
    }
}

#[test]
fn broken_indices() {
    let dir = tempfile::tempdir().unwrap();
    let index = dir.path().join("model.safetensors.index.json");
    let message = |text: &str| {
        fs::write(&index, text).unwrap();
        WeightFolder::open(dir.path()).unwrap_err().to_string()
    };
    assert!(message("{").contains("is not a safetensors index"));
    assert!(message(r#"{"weights": {}}"#).contains("missing field `weight_map`"));
    let missing = message(r#"{"weight_map": {"w": "model-00001-of-00002.safetensors"}}"#);
    assert!(
        missing.contains("names the shard `model-00001-of-00002.safetensors`, which is not"),
        "{missing}"
    );
    let inner = tempfile::tempdir().unwrap();
    write(inner.path(), &[("w", &ramp(Dtype::F32, &[2]))]);
    fs::copy(inner.path().join("model.safetensors"), dir.path().join("s.safetensors")).unwrap();
    let moved = message(r#"{"weight_map": {"w": "s.safetensors", "v": "s.safetensors"}}"#);
    assert!(moved.contains("places `v` in `s.safetensors`, which does not hold it"), "{moved}");
}

#[test]
fn unknown_names_get_the_nearest() {
    let dir = tempfile::tempdir().unwrap();
    let t = ramp(Dtype::F32, &[2]);
    write(dir.path(), &[("model.layers.0.self_attn.q_proj.weight", &t), ("lm_head.weight", &t)]);
    let folder = WeightFolder::open(dir.path()).unwrap();
    let e = folder.read("layers.0.self_attn.q_proj.weight").unwrap_err().to_string();
    assert!(e.ends_with("nearest: model.layers.0.self_attn.q_proj.weight"), "{e}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_slice_is_what_the_whole_has_there(
        shape in prop::collection::vec(1_usize..6, 1..4),
        dim in 0_usize..3,
        ends in (0_usize..7, 0_usize..7),
        bf16 in any::<bool>(),
    ) {
        let dtype = if bf16 { Dtype::Bf16 } else { Dtype::F32 };
        let whole = ramp(dtype, &shape);
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &[("pad", &ramp(Dtype::F64, &[3])), ("w", &whole)]);
        let folder = WeightFolder::open(dir.path()).unwrap();
        let range = ends.0..ends.1;
        let got = folder.read_slice("w", dim, range.clone());
        let inside = dim < shape.len() && range.start <= range.end && range.end <= shape[dim];
        prop_assert_eq!(got.is_ok(), inside);
        if let Ok(got) = got {
            let inner: usize = shape[dim + 1..].iter().product();
            let values = whole.to_f32();
            let expected: Vec<f32> = (0..values.len())
                .filter(|i| range.contains(&(i / inner % shape[dim])))
                .map(|i| values[i])
                .collect();
            prop_assert_eq!(got.to_f32(), expected);
            prop_assert_eq!(got.shape[dim], range.len());
        }
    }

    #[test]
    fn a_block_is_what_the_whole_has_there(
        (height, width) in (0_usize..6, 0_usize..6),
        rows in (0_usize..7, 0_usize..7),
        columns in (0_usize..7, 0_usize..7),
        bf16 in any::<bool>(),
    ) {
        let whole = ramp(if bf16 { Dtype::Bf16 } else { Dtype::F32 }, &[height, width]);
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &[("pad", &ramp(Dtype::F64, &[3])), ("w", &whole)]);
        let folder = WeightFolder::open(dir.path()).unwrap();
        let (rows, columns) = (rows.0..rows.1, columns.0..columns.1);
        let got = folder.read_block("w", rows.clone(), columns.clone());
        let inside = |range: &std::ops::Range<usize>, end| range.start <= range.end && range.end <= end;
        prop_assert_eq!(got.is_ok(), inside(&rows, height) && inside(&columns, width));
        if let Ok(got) = got {
            let values = whole.to_f32();
            let row = |row: usize| columns.clone().map(move |column| row * width + column);
            let expected: Vec<f32> = rows.clone().flat_map(row).map(|i| values[i]).collect();
            prop_assert_eq!(got.to_f32(), expected);
            prop_assert_eq!(got.shape, vec![rows.len(), columns.len()]);
        }
        prop_assert!(folder.read_block("pad", 0..1, 0..1).is_err(), "no matrix");
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), json in "[\\[\\]{}\":,a-zF0-9]{0,60}") {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        fs::write(&path, &bytes).unwrap();
        prop_assert!(WeightFolder::open(&path).is_err());
        let _ = craft(&json, 4);
    }
}

/// A matrix of 3 x 5 and two of 2 x 2 in eight bits, with scales for blocks of 2 x 2: as Transformers multiplies them out.
#[test]
fn eight_bit_floats_are_read_with_the_scales_of_their_blocks() {
    let header = r#"{"w":{"dtype":"F8_E4M3","shape":[3,5],"data_offsets":[0,15]},
        "w_scale_inv":{"dtype":"F32","shape":[2,3],"data_offsets":[15,39]},
        "w.activation_scale":{"dtype":"F32","shape":[],"data_offsets":[39,43]},
        "x":{"dtype":"F8_E4M3","shape":[2,2,2],"data_offsets":[43,51]},
        "x_scale_inv":{"dtype":"BF16","shape":[2,1,1],"data_offsets":[51,55]},
        "plain":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[55,56]}}"#;
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    // 0x38 is 1, 0x40 is 2, 0xb8 is -1.
    bytes.extend([
        0x38_u8, 0x40, 0xb8, 0x38, 0x38, 0x38, 0x38, 0x38, 0x38, 0x40, 0x40, 0x38, 0x38, 0x38, 0xb8,
    ]);
    for scale in [0.5_f32, 2.0, 4.0, 8.0, 16.0, 32.0, 9.0] {
        bytes.extend(scale.to_le_bytes());
    }
    bytes.extend([0x38_u8; 8]);
    bytes.extend([0x40, 0x40, 0x80, 0xbf, 0x38]);
    std::fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
    let open = || WeightFolder::open(dir.path()).unwrap();
    let with = |block| open().with_scales(ScaleLayout::FineGrained { block });
    assert!(open().info("w").unwrap_err().to_string().contains("F8_E4M3"));
    let folder = with(Some([2, 2])).unwrap();
    assert_eq!(folder.names().collect::<Vec<_>>(), ["plain", "w", "x"]);
    let whole = folder.read("w").unwrap();
    assert_eq!((whole.dtype, &whole.shape[..]), (Dtype::Bf16, &[3, 5][..]));
    let all = [0.5, 1.0, -2.0, 2.0, 4.0, 0.5, 0.5, 2.0, 2.0, 8.0, 16.0, 8.0, 16.0, 16.0, -32.0];
    assert_eq!(whole.to_f32(), all);
    assert_eq!(folder.read_slice("w", 0, 1..3).unwrap().to_f32(), all[5..]);
    assert_eq!(folder.read_slice("w", 1, 3..5).unwrap().to_f32(), [2.0, 4.0, 2.0, 8.0, 16.0, -32.0]);
    assert_eq!(folder.read_block("w", 2..3, 0..2).unwrap().to_f32(), [16.0, 8.0]);
    let mut out = vec![0; 30];
    folder.read_into("w", &mut out).unwrap();
    assert_eq!(out, whole.bytes);
    assert_eq!(folder.read_slice("x", 0, 1..2).unwrap().to_f32(), [-1.0; 4]);
    assert_eq!(folder.read_slice("x", 2, 1..2).unwrap().to_f32(), [3.0, 3.0, -1.0, -1.0]);
    assert!(folder.info("plain").is_err());
    let error = with(Some([2, 1])).unwrap_err().to_string();
    assert!(error.contains("`w_scale_inv` is [2, 3], expected [2, 5]"), "{error}");
    let error = with(None).unwrap_err().to_string();
    assert!(error.contains("`w_scale_inv` is [2, 3], expected [1, 1]"), "{error}");
}

#[test]
fn scales_may_be_powers_of_two() {
    let header = r#"{"w":{"dtype":"F8_E4M3","shape":[2,4],"data_offsets":[0,8]},
        "w_scale_inv":{"dtype":"F8_E8M0","shape":[1,2],"data_offsets":[8,10]}}"#;
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend([0x38_u8, 0x40, 0xb8, 0x38, 0x38, 0x38, 0x38, 0x40, 128, 126]);
    std::fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
    let layout = ScaleLayout::FineGrained { block: Some([2, 2]) };
    let folder = WeightFolder::open(dir.path()).unwrap().with_scales(layout).unwrap();
    assert_eq!(folder.read("w").unwrap().to_f32(), [2.0, 4.0, -0.5, 0.5, 2.0, 2.0, 0.5, 1.0]);
}
