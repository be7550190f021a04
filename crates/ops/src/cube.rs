//! CubeCL's side of tensors: the memory of one, a tensor on memory, and kernels between Burn's operations.
//!
//! Burn's own fusion is left out of the backend: what it would join is in kernels of burnish's own, and its queue costs a
//! thread more for each launch than the launch itself (`docs/decisions.md`). So a kernel is launched where it is asked for, in the
//! thread that asks, as Burn's own operations are; nothing waits for the device.

use std::ops::Range;

use burn::backend::{Cube, DispatchDevice, DispatchKindConversion, DispatchTensor};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burnish_core::PackedRows;
use burnish_gpu_kernels::{Buffer, Client, FloatType, PackedLayout, Reading, copy, join, widen_rows};

use crate::AnyTensor;
use crate::custom::Host;
use crate::tensor::in_burn;

/// The plain tensor as the backend has it; `None` if its device is not CubeCL's.
fn primitive(tensor: &AnyTensor) -> Option<CubeTensor> {
    let plain = tensor.plain().dispatch();
    let primitive = <DispatchTensor as DispatchKindConversion<Cube>>::try_into_backend(plain).ok()?;
    Some(primitive.float())
}

/// The client of a tensor's device; `None` if that is not CubeCL's.
pub(crate) fn client(tensor: &AnyTensor) -> Option<Client> {
    client_of(&tensor.device())
}

/// The client of a device; `None` if it is not CubeCL's.
pub(crate) fn client_of(device: &Device) -> Option<Client> {
    match device.clone().without_autodiff().as_dispatch() {
        DispatchDevice::Cube(device) => Some(device.client()),
        _ => None,
    }
}

/// The memory of a plain tensor, made contiguous; `None` if its device is not CubeCL's.
///
/// What computes it is given to the device; nothing waits for that.
#[must_use]
pub fn memory(tensor: &AnyTensor) -> Option<CubeTensor> {
    primitive(tensor).map(into_contiguous)
}

/// Begins to read a plain tensor; `None` if it is not in f32 on one of CubeCL's devices.
pub(crate) fn reading(tensor: &AnyTensor) -> Option<Reading> {
    let CubeTensor { client, handle, dtype, .. } = memory(tensor)?;
    (dtype == DType::F32).then(|| Reading::begin(&client, handle))
}

/// A plain tensor on memory.
#[must_use]
pub fn tensor(memory: CubeTensor) -> AnyTensor {
    Cube::wrap(memory)
}

/// A number for the memory of a plain tensor, which no other memory has; `None` if its device is not CubeCL's.
pub(crate) fn memory_of(tensor: &AnyTensor) -> Option<usize> {
    primitive(tensor).map(|tensor| tensor.handle.memory.binding().id().value)
}

/// A copy of a plain tensor in memory of its own, row behind row; `None` if its device is not CubeCL's or no kernel has its dtype.
pub(crate) fn duplicate(tensor: &AnyTensor) -> Option<AnyTensor> {
    let (on, from) = (On::device_of(tensor)?, buffer(tensor)?);
    let to = Buffer::empty(on.client(), from.len, from.dtype);
    copy(on.client(), &from, &to);
    Some(on.in_dtype(to, &tensor.shape(), tensor.burn_dtype()))
}

/// Writes rows over elements of `home` from `first` on, whoever else holds that; whether a kernel could, which has to find them in
/// one dtype on one of CubeCL's devices, `home` row behind row.
pub(crate) fn overwrite(home: &AnyTensor, first: usize, rows: &Tensor<2>) -> bool {
    let rows = AnyTensor::new(rows.clone());
    let (Some(on), Some(to), Some(from)) = (On::device_of(home), buffer(home), buffer(&rows)) else {
        return false;
    };
    if to.dtype != from.dtype || first + from.len > to.len {
        return false;
    }
    copy(on.client(), &from, &to.piece(first, from.len));
    true
}

/// Pieces of memory as tensors on the device of another.
pub(crate) struct On(CubeTensor);

impl On {
    /// That of `tensor`; `None` if it is not CubeCL's.
    pub(crate) fn device_of(tensor: &AnyTensor) -> Option<Self> {
        primitive(tensor).map(Self)
    }

    pub(crate) fn client(&self) -> &Client {
        &self.0.client
    }

    fn piece(&self, piece: Buffer, shape: &[usize], dtype: DType) -> CubeTensor {
        let (client, device) = (self.0.client.clone(), self.0.device.clone());
        CubeTensor::new_contiguous(client, device, shape.to_vec().into(), piece.handle, dtype)
    }

    /// Numbers in f32.
    pub(crate) fn floats(&self, piece: Buffer, shape: &[usize]) -> AnyTensor {
        self.in_dtype(piece, shape, DType::F32)
    }

    /// Numbers in a dtype that kernels compute with.
    pub(crate) fn in_dtype(&self, piece: Buffer, shape: &[usize], dtype: DType) -> AnyTensor {
        debug_assert!(float(dtype) == Some(piece.dtype));
        Cube::wrap(self.piece(piece, shape, dtype))
    }

    /// Words.
    pub(crate) fn integers(&self, piece: Buffer) -> Tensor<1, Int> {
        let shape = [piece.len];
        Tensor::from_primitive::<Cube>(self.piece(piece, &shape, DType::I32))
    }
}

/// The memory of a plain tensor of floats as kernels take it; `None` where they cannot have it.
pub(crate) fn buffer(tensor: &AnyTensor) -> Option<Buffer> {
    let memory = memory(tensor)?;
    Some(Buffer { len: memory.meta.num_elements(), dtype: float(memory.dtype)?, handle: memory.handle })
}

/// The memory of integers of 32 bits, as a buffer like those of floats; `None` where kernels cannot have it.
pub(crate) fn integers(tensor: &Tensor<1, Int>) -> Option<Buffer> {
    let memory = into_contiguous(tensor.clone().try_into_primitive::<Cube>().ok()?);
    let len = memory.meta.num_elements();
    (memory.dtype == DType::I32).then_some(Buffer { handle: memory.handle, len, dtype: FloatType::F32 })
}

/// What the kernels call a dtype; `None` of what they do not compute with.
pub(crate) fn float(dtype: DType) -> Option<FloatType> {
    match dtype {
        DType::F32 => Some(FloatType::F32),
        DType::BF16 => Some(FloatType::Bf16),
        DType::F16 => Some(FloatType::F16),
        _ => None,
    }
}

/// The tensors that a kernel reads, on one of CubeCL's devices and in dtypes that kernels compute with.
pub(crate) struct Inputs(Vec<CubeTensor>);

impl Inputs {
    /// These tensors; `None` where a kernel cannot have them.
    pub(crate) fn of(tensors: &[&AnyTensor]) -> Option<Self> {
        let all: Option<Vec<CubeTensor>> = tensors.iter().map(|t| primitive(t)).collect();
        all.filter(|all| all.iter().all(|t| float(t.dtype).is_some())).map(Self)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// And another tensor; `None` where a kernel cannot have it.
    pub(crate) fn and(mut self, tensor: &AnyTensor) -> Option<Self> {
        self.0.extend(Self::of(&[tensor])?.0);
        Some(self)
    }

    /// And one of integers, which the kernel gets as a buffer like the others, whatever dtype that says.
    pub(crate) fn and_integers(mut self, tensor: Tensor<1, Int>) -> Self {
        let primitive = tensor.try_into_primitive::<Cube>().expect("invariant: on the inputs' device");
        self.0.push(primitive);
        self
    }
}

/// Launches a kernel: `kernel` gets the inputs' contiguous buffers and returns the outputs', of the shapes and dtypes that
/// `outputs` says.
///
/// An input that nothing else holds is the kernel's own: where `Handle::can_mut` says so, it may write there.
pub(crate) fn launch<const N: usize>(
    inputs: Inputs,
    outputs: [(&[usize], DType); N],
    kernel: impl FnOnce(&Client, Vec<Buffer>) -> [Buffer; N],
) -> [AnyTensor; N] {
    let outputs = outputs.map(|(shape, dtype)| (shape.to_vec(), dtype)).to_vec();
    launch_all(inputs, outputs, |client, buffers| kernel(client, buffers).into())
        .try_into()
        .unwrap_or_else(|_| unreachable!("invariant: a tensor for each output"))
}

/// [`launch`] of a kernel with as many outputs as there are.
pub(crate) fn launch_all(
    inputs: Inputs,
    outputs: Vec<(Vec<usize>, DType)>,
    kernel: impl FnOnce(&Client, Vec<Buffer>) -> Vec<Buffer>,
) -> Vec<AnyTensor> {
    let tensors = inputs.0;
    let (client, device) = (tensors[0].client.clone(), tensors[0].device.clone());
    let buffers = tensors.into_iter().map(|tensor| {
        let CubeTensor { handle, meta, dtype, .. } = into_contiguous(tensor);
        // Integers go as what has their size.
        Buffer { handle, len: meta.num_elements(), dtype: float(dtype).unwrap_or(FloatType::F32) }
    });
    let made = kernel(&client, buffers.collect());
    let outputs = made.into_iter().zip(outputs).map(|(made, (shape, dtype))| {
        debug_assert!(made.len == shape.iter().product::<usize>() && float(dtype) == Some(made.dtype));
        let (client, device) = (client.clone(), device.clone());
        Cube::wrap(CubeTensor::new_contiguous(client, device, shape.into(), made.handle, dtype))
    });
    outputs.collect()
}

/// [`launch_all`] of what reads tensors as they lie, transposed or in part.
pub(crate) fn launch_on_tensors<const N: usize>(
    inputs: Inputs,
    kernel: impl FnOnce(Vec<CubeTensor>) -> [CubeTensor; N],
) -> [AnyTensor; N] {
    kernel(inputs.0).map(Cube::wrap)
}

/// See [`crate::joined()`]; `None` where no kernel reads them.
pub(crate) fn joined(pieces: &[(AnyTensor, Range<usize>)], shape: &[usize]) -> Option<AnyTensor> {
    let (dtype, tensors) = (pieces[0].0.burn_dtype(), pieces.iter().map(|(value, _)| value));
    let inputs = Inputs::of(&tensors.collect::<Vec<_>>())?;
    let [whole] = launch(inputs, [(shape, dtype)], |client, buffers| {
        let piece =
            |(all, (_, range)): (&Buffer, &(AnyTensor, Range<usize>))| all.piece(range.start, range.len());
        [join(client, &buffers.iter().zip(pieces).map(piece).collect::<Vec<_>>())]
    });
    Some(whole)
}

/// A matrix in fewer bits in a device's memory: of each of its strips the layout, the numbers and the words.
#[derive(Debug)]
pub(crate) struct Resting {
    /// With the column that each begins in.
    layouts: Vec<(PackedLayout, usize)>,
    numbers: Vec<AnyTensor>,
    words: Vec<Tensor<1, Int>>,
    width: usize,
    dtype: DType,
}

impl Resting {
    /// `None` where no kernel widens its rows on that device.
    pub(crate) fn new(rows: &dyn PackedRows, device: &Device) -> Option<Self> {
        let ([_, width], dtype) = (rows.shape(), in_burn(rows.dtype()));
        let device = device.clone().without_autodiff();
        client_of(&device)?;
        float(dtype)?;
        let strips = rows.strips().filter(|strips| !strips.is_empty())?;
        let mut resting = Self { layouts: Vec::new(), numbers: Vec::new(), words: Vec::new(), width, dtype };
        let mut column = 0;
        for strip in strips {
            let (layout, words, numbers) = PackedLayout::new(&strip);
            let words: Vec<i32> = words.into_iter().map(u32::cast_signed).collect();
            resting.layouts.push((layout, column));
            let shape = [numbers.len()];
            resting.numbers.push(AnyTensor::from_elements(numbers, &shape, &device));
            let shape = [words.len()];
            resting.words.push(Tensor::from_data(TensorData::new(words, shape), (&device, DType::I32)));
            column += strip.columns;
        }
        Some(resting)
    }

    /// Its layout, numbers and words, where all columns are one strip.
    pub(crate) fn whole(&self) -> Option<(&PackedLayout, &AnyTensor, &Tensor<1, Int>)> {
        match (&self.layouts[..], &self.numbers[..], &self.words[..]) {
            ([(layout, _)], [numbers], [words]) => Some((layout, numbers, words)),
            _ => None,
        }
    }

    /// The elements of some rows as a tensor of `shape`.
    pub(crate) fn widened(&self, rows: Range<usize>, shape: &[usize]) -> AnyTensor {
        let mut inputs = Inputs::of(&self.numbers.iter().collect::<Vec<_>>())
            .expect("invariant: numbers are in f32 on a device of CubeCL's");
        for words in &self.words {
            inputs = inputs.and_integers(words.clone());
        }
        let (layouts, width, dtype) = (self.layouts.clone(), self.width, self.dtype);
        let [y] = launch(inputs, [(shape, dtype)], move |client, buffers| {
            let dtype = float(dtype).expect("invariant: it was asked before");
            let y = Buffer::empty(client, rows.len() * width, dtype);
            let (numbers, words) = buffers.split_at(layouts.len());
            for ((layout, column), (numbers, words)) in layouts.iter().zip(numbers.iter().zip(words)) {
                widen_rows(client, layout, [words, numbers], rows.clone(), &y, [*column, width]);
            }
            [y]
        });
        y
    }
}
