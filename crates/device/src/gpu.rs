//! `Gpu`: GPUs by name, with the figures that their maker publishes.

use burnish_core::{UnknownWord, choices};

choices! {
    /// A GPU that a run may be planned for.
    pub enum Gpu: "device", UnknownWord {
        /// NVIDIA H200 SXM.
        H200 = "h200",
        /// NVIDIA H100 SXM.
        H100 = "h100",
        /// NVIDIA H100 PCIe.
        H100Pcie = "h100-pcie",
        /// NVIDIA A100 SXM of 80 GB.
        A100 = "a100",
        /// NVIDIA B200, of an HGX board.
        B200 = "b200",
        /// NVIDIA L40S.
        L40s = "l40s",
        /// NVIDIA GeForce RTX 4090.
        Rtx4090 = "rtx4090",
        /// NVIDIA L4.
        L4 = "l4",
    }
}

/// What a GPU can do at most. Operations are of dense matrices, per second; bytes are of 10^9 a gigabyte.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuFigures {
    /// Products of bfloat16 with fp32 sums, on tensor cores.
    pub bf16: f64,
    /// Products of fp32 in TF32, on tensor cores.
    pub tf32: f64,
    /// fp32 outside of tensor cores.
    pub fp32: f64,
    /// Bytes per second of its memory.
    pub bandwidth: f64,
    /// Bytes of its memory.
    pub memory: u64,
    /// Bytes per second to another GPU of the machine, in one direction: half of what is published of NVLink, which is both
    /// ways; PCIe where there is none.
    pub link: f64,
    /// Bytes per second to the host, in one direction.
    pub host: f64,
}

/// One direction of 16 lanes of PCIe 4.0 and 5.0.
const PCIE: [f64; 2] = [32e9, 64e9];

const fn figures(
    [bf16, tf32, fp32]: [f64; 3],
    [terabytes, memory]: [f64; 2],
    link: f64,
    host: f64,
) -> GpuFigures {
    GpuFigures {
        bf16: bf16 * 1e12,
        tf32: tf32 * 1e12,
        fp32: fp32 * 1e12,
        bandwidth: terabytes * 1e12,
        memory: (memory * 1e9) as u64,
        link,
        host,
    }
}

impl Gpu {
    /// Its figures. Where only products of sparse matrices are published, dense ones are half of them, as the sheets say.
    #[must_use]
    pub const fn figures(self) -> GpuFigures {
        match self {
            // NVIDIA H200 Tensor Core GPU datasheet (3002446): 1,979 and 989 with sparsity, 67; 4.8 TB/s, 141 GB, NVLink 900 GB/s.
            Self::H200 => figures([989.5, 494.5, 67.0], [4.8, 141.0], 450e9, PCIE[1]),
            // NVIDIA H100 Tensor Core GPU datasheet (2430615), SXM: 1,979 and 989 with sparsity, 67; 3.35 TB/s, 80 GB, 900 GB/s.
            Self::H100 => figures([989.5, 494.5, 67.0], [3.35, 80.0], 450e9, PCIE[1]),
            // The same sheet, PCIe: 1,513 and 756 with sparsity, 51; 2 TB/s, 80 GB, NVLink 600 GB/s over a bridge.
            Self::H100Pcie => figures([756.5, 378.0, 51.0], [2.0, 80.0], 300e9, PCIE[1]),
            // NVIDIA A100 Tensor Core GPU datasheet (2188504), SXM 80 GB: 312, 156, 19.5; 2,039 GB/s, NVLink 600 GB/s.
            Self::A100 => figures([312.0, 156.0, 19.5], [2.039, 80.0], 300e9, PCIE[0]),
            // NVIDIA Blackwell datasheet (3645078), HGX B200, an eighth of the board: 4.5 and 2.2 PFLOPS with sparsity, 75;
            // 7.7 TB/s, 180 GB, NVLink 1.8 TB/s.
            Self::B200 => figures([2250.0, 1100.0, 75.0], [7.7, 180.0], 900e9, PCIE[1]),
            // NVIDIA L40S datasheet (2953698): 362.05, 183, 91.6; 864 GB/s, 48 GB, PCIe 4.0, no NVLink.
            Self::L40s => figures([362.05, 183.0, 91.6], [0.864, 48.0], PCIE[0], PCIE[0]),
            // NVIDIA Ada GPU architecture whitepaper (V2.02), appendix A, GeForce RTX 4090: 165.2 with fp32 sums, 82.6, 82.6;
            // 1,008 GB/s, 24 GB, PCIe 4.0, no NVLink.
            Self::Rtx4090 => figures([165.2, 82.6, 82.6], [1.008, 24.0], PCIE[0], PCIE[0]),
            // NVIDIA L4 datasheet (2703450): 242 and 120 with sparsity, 30.3; 300 GB/s, 24 GB, PCIe 4.0, no NVLink.
            Self::L4 => figures([121.0, 60.0, 30.3], [0.3, 24.0], PCIE[0], PCIE[0]),
        }
    }

    /// The one that a driver calls so (`NVIDIA H100 80GB HBM3`), if it is known.
    #[must_use]
    pub fn of_driver(name: &str) -> Option<Self> {
        // Names hold others: the longer one comes first.
        const NAMES: [(&str, Gpu); 8] = [
            ("H200", Gpu::H200),
            ("H100 PCIe", Gpu::H100Pcie),
            ("H100", Gpu::H100),
            ("B200", Gpu::B200),
            ("A100", Gpu::A100),
            ("L40S", Gpu::L40s),
            ("RTX 4090", Gpu::Rtx4090),
            ("L4", Gpu::L4),
        ];
        // Of GB200 and L40, which are others, the word is a part.
        let word = |known: &str| {
            let whole = |c: Option<char>| c.is_none_or(|c| !c.is_ascii_alphanumeric());
            name.match_indices(known).any(|(at, _)| {
                whole(name[..at].chars().next_back()) && whole(name[at + known.len()..].chars().next())
            })
        };
        NAMES.into_iter().find(|(known, _)| word(known)).map(|(_, gpu)| gpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_names_are_known() {
        let known = |name| Gpu::of_driver(name).map(Gpu::name);
        assert_eq!(known("NVIDIA H100 80GB HBM3"), Some("h100"));
        assert_eq!(known("NVIDIA H100 PCIe"), Some("h100-pcie"));
        assert_eq!(known("NVIDIA H200"), Some("h200"));
        assert_eq!(known("NVIDIA A100-SXM4-80GB"), Some("a100"));
        assert_eq!(known("NVIDIA GeForce RTX 4090"), Some("rtx4090"));
        assert_eq!(known("NVIDIA L40S"), Some("l40s"));
        assert_eq!(known("NVIDIA L4"), Some("l4"));
        assert_eq!(known("NVIDIA L40"), None);
        assert_eq!(known("NVIDIA GB200"), None);
    }

    #[test]
    fn faster_arithmetic_is_narrower() {
        for gpu in Gpu::ALL {
            let of = gpu.figures();
            assert!(of.bf16 > of.tf32 && of.tf32 >= of.fp32 * 0.9, "{gpu}");
            assert!(of.bandwidth > of.link && of.link >= of.host, "{gpu}");
        }
    }
}
