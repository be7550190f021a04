//! `burnish doctor`: what this machine has of what a run needs.

use std::process::ExitCode;
use std::time::Instant;

use burn::tensor::{Device, Tensor, TensorData};
use burnish_config::DoctorOptions;
use burnish_device::{DeviceKind, findings, open};

use crate::refusal::{refusal, require};
use crate::voice::result;

pub(crate) fn run(words: &[String]) -> anyhow::Result<ExitCode> {
    let Some(resolved) = crate::options::<DoctorOptions>(words)? else { return Ok(ExitCode::SUCCESS) };
    for finding in findings() {
        let said = finding.found.unwrap_or_else(|lack| format!("missing: {lack}"));
        result(format_args!("{:14} {said}", finding.what))?;
    }
    result(format_args!("{:14} {}", "NCCL", nccl()))?;
    let (kind, ordinal) = crate::device::kind(resolved.options.device.device.0, &mut |_| {})?;
    let device = open(kind, ordinal)?;
    let name = if kind == DeviceKind::Cuda { format!("cuda:{ordinal}") } else { kind.to_string() };
    result(format_args!("{:14} {}", name, tried(&device)?))?;
    Ok(ExitCode::SUCCESS)
}

/// Which NCCL there is, or what is missing.
#[cfg(feature = "cuda")]
fn nccl() -> String {
    burnish_device::cuda::Installation::find().load_nccl();
    match burnish_comm::nccl::available() {
        Ok(found) => format!("{} ({})", found.version, found.path.display()),
        Err(lack) => format!("missing: {lack}"),
    }
}

#[cfg(not(feature = "cuda"))]
fn nccl() -> String {
    "missing: this build has none; build with `--features cuda`".to_owned()
}

/// Computes a product whose value is known; a failure of the device is an error, not a panic.
fn tried(device: &Device) -> anyhow::Result<String> {
    let begun = Instant::now();
    let size = 64;
    let values: Vec<f32> = (0..size * size).map(|i| 0.25 + (i % 7) as f32).collect();
    let expected: Vec<f32> = values.chunks(size).map(|row| 2.0 * row.iter().sum::<f32>()).collect();
    let left: Tensor<2> = Tensor::from_data(TensorData::new(values, [size, size]), device);
    let twos = Tensor::<2>::ones([size, 1], device) * 2.0;
    let product = left.matmul(twos).reshape([size]).try_into_data()?.convert::<f32>();
    let product = product.as_slice::<f32>().map_err(|error| refusal!(DeviceFailed, "{error:?}"))?;
    for (row, (got, expected)) in product.iter().zip(&expected).enumerate() {
        require!(
            (got - expected).abs() <= 1e-2 * expected,
            DeviceFailed,
            "a matrix product gave {got} in row {row}, expected {expected}: the device or its driver computes wrongly; try `--device cpu`"
        );
    }
    Ok(format!("computes (first product after {:.1} s, kernels compiled)", begun.elapsed().as_secs_f64()))
}
