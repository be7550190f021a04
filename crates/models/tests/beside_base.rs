//! Adapters that no weights would do the same as stay beside their base, wherever they would become something else.

use burnish_core::Dtype;
use burnish_gguf::OutType;
use burnish_models::{
    AdapterByExpert, GgufAdapterExport, MixedAdapters, ModelError, ModelFolder, ModelPlan, Tuning,
};
use burnish_peft::{AdapterFolder, Combination, FolderWriter, PeftError, Weighted, add_weighted_adapter};

use crate::recordings::fixtures;
use crate::round_trips::{adapted, target};

#[test]
fn one_wording_says_so() {
    let of = |more: &str| format!(r#"{{"peft_type": "LORA", "r": 2, "target_modules": ["q_proj"], {more}}}"#);
    for (key, config) in [
        ("alora_invocation_tokens", of(r#""alora_invocation_tokens": [4, 2]"#)),
        ("layer_replication", of(r#""layer_replication": [[0, 2], [1, 2]]"#)),
        ("peft_type", r#"{"peft_type": "PREFIX_TUNING", "num_virtual_tokens": 3}"#.to_owned()),
    ] {
        let (folder, model) = adapted("llama", &config);
        let (_guard, path, mut writer) = target();
        model.write_adapter(&mut writer).unwrap();
        writer.commit().unwrap();
        let adapter = AdapterFolder::open(&path).unwrap();
        let of_peft = |error: ModelError| match error {
            ModelError::Peft(error) => error,
            other => panic!("{key}: {other}"),
        };
        let merged = tempfile::tempdir().unwrap();
        let mut writer = FolderWriter::new_folder(merged.path().join("merged")).unwrap();
        let planned = ModelPlan::new(&folder, &Tuning::Adapter(&adapter), Dtype::F32, 0).unwrap();
        let plan = planned.plan().unwrap();
        let tensors = adapter.load(plan).unwrap();
        let again = || ModelFolder::open(fixtures().join("llama")).unwrap();
        let errors = [
            of_peft(model.write_merged(&folder, &mut writer, Dtype::F32).unwrap_err()),
            of_peft(AdapterByExpert::new(&folder, &adapter).err().unwrap()),
            of_peft(GgufAdapterExport::new(again(), &adapter, OutType::F32).err().unwrap()),
            add_weighted_adapter(&[Weighted { plan, tensors: &tensors, weight: 1.0 }], Combination::Cat)
                .unwrap_err(),
        ];
        let beside = adapter.config.beside_base().unwrap();
        assert_eq!(beside.key, key);
        for error in errors {
            let PeftError::BesideBase { key: got, ref value, reason, .. } = error else {
                panic!("{key}: {error}")
            };
            assert_eq!((got, value, reason), (key, &beside.value, beside.reason));
            let said = error.to_string();
            assert!(said.contains("cannot become") && said.contains("leave it beside its base"), "{said}");
        }
        match of_peft(MixedAdapters::new(&folder).add("one", &adapter).unwrap_err()) {
            PeftError::NotMixed { key: got, .. } => assert_eq!(got, key),
            error => panic!("{error}"),
        }
    }
}
