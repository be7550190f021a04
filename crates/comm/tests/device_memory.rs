//! Buckets whose elements lie elsewhere, over transports that know nothing of it.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burnish_comm::transport::{Aligned, Bytes, DeviceError, DeviceMemory};
use burnish_comm::{Bucket, Reduction, local};

/// Memory that counts how often it is copied to the host.
#[derive(Debug)]
struct Counted {
    bytes: Vec<u8>,
    copies: AtomicUsize,
    lost: bool,
}

impl Counted {
    fn new(values: &[f32]) -> Arc<Self> {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Arc::new(Self { bytes, copies: AtomicUsize::new(0), lost: false })
    }

    fn copies(&self) -> usize {
        self.copies.load(Ordering::Relaxed)
    }
}

impl DeviceMemory for Counted {
    fn ordinal(&self) -> usize {
        3
    }

    fn bytes(&self) -> usize {
        self.bytes.len()
    }

    fn to_host(&self) -> Result<Aligned, DeviceError> {
        self.copies.fetch_add(1, Ordering::Relaxed);
        if self.lost {
            let source = Arc::new(std::io::Error::other("an illegal address"));
            return Err(DeviceError::Lost { ordinal: 3, bytes: self.bytes.len(), source });
        }
        Ok(Aligned::copy_of(&self.bytes))
    }

    fn address(&self) -> Result<u64, DeviceError> {
        Ok(0)
    }

    fn empty(&self, bytes: usize) -> Result<Arc<dyn DeviceMemory>, DeviceError> {
        Ok(Arc::new(Self { bytes: vec![0; bytes], copies: AtomicUsize::new(0), lost: false }))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[test]
fn device_memory_comes_to_the_host_once_and_only_when_it_is_looked_at() {
    let memory = Counted::new(&[1.0, 2.0, 3.0, 4.0]);
    let bytes = Bytes::on_device(Arc::clone(&memory) as Arc<dyn DeviceMemory>);
    let part = bytes.slice(8..16).aligned_to(4);
    assert_eq!((bytes.len(), part.len()), (16, 8));
    assert_eq!(part.device().map(|(_, range)| range), Some(8..16));
    let bucket = Bucket::<f32>::on_device(Arc::clone(&memory) as Arc<dyn DeviceMemory>);
    assert_eq!(bucket.len(), 4);
    assert_eq!(format!("{bucket:?} {part:?}"), "Bucket<float32>(4 elements) Bytes(8 bytes on a device)");
    assert_eq!(memory.copies(), 0);
    assert_eq!(part.elements::<f32>(), [3.0, 4.0]);
    assert_eq!(bytes.elements::<f32>(), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(memory.copies(), 1);
    let (found, _) = bucket.device().unwrap();
    assert!(found.as_any().downcast_ref::<Counted>().is_some());
    assert_eq!(bucket.into_vec(), [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn a_device_that_cannot_be_read_is_an_error() {
    let memory = Counted { bytes: vec![0; 8], copies: AtomicUsize::new(0), lost: true };
    let bytes = Bytes::on_device(Arc::new(memory));
    let text = bytes.to_host().unwrap_err().to_string();
    assert!(
        text.contains("device 3") && text.contains("8 bytes") && text.contains("illegal address"),
        "{text}"
    );
}

#[test]
#[should_panic(expected = "10 bytes of elements of 4")]
fn a_bucket_holds_whole_elements() {
    let memory = Counted { bytes: vec![0; 10], copies: AtomicUsize::new(0), lost: false };
    let _ = Bucket::<f32>::on_device(Arc::new(memory));
}

#[test]
fn threads_take_buckets_on_a_device_as_any_other() {
    let results = local::run(3, |world| {
        let (group, rank) = (world.group(), world.rank() as f32);
        let memory = |values: &[f32]| Counted::new(values) as Arc<dyn DeviceMemory>;
        let sum =
            group.all_reduce(Bucket::<f32>::on_device(memory(&[rank, 1.0])), Reduction::Sum, "sum").wait()?;
        let part = Bucket::<f32>::on_device(memory(&[rank; 2]));
        let parts = group.all_gather_v(part, &[2; 3], "parts").wait()?;
        assert_eq!(parts.len(), 6);
        let told = group.broadcast(Bucket::<f32>::on_device(memory(&[rank; 2])), 2, "told").wait()?;
        let sent = group.send(Bucket::new(vec![rank]), (world.rank() + 1) % 3, "ring");
        let got = group.recv_like::<f32>((world.rank() + 2) % 3, 1, &memory(&[0.0]), "ring").wait()?;
        sent.wait()?;
        Ok::<_, burnish_comm::CommError>([
            sum.into_vec(),
            parts.concat().into_vec(),
            told.into_vec(),
            got.into_vec(),
        ])
    });
    for (rank, result) in results.into_iter().enumerate() {
        let [sum, parts, told, got] = result.unwrap().unwrap();
        assert_eq!((sum, parts), (vec![3.0, 3.0], vec![0.0, 0.0, 1.0, 1.0, 2.0, 2.0]));
        assert_eq!((told, got), (vec![2.0; 2], vec![((rank + 2) % 3) as f32]));
    }
}

#[test]
fn parts_that_lie_together_are_joined_where_they_are() {
    let memory = Counted::new(&[5.0; 6]);
    let parts = local::run(1, |world| {
        let part = Bucket::<f32>::on_device(Arc::clone(&memory) as Arc<dyn DeviceMemory>);
        world.group().all_gather_v(part, &[6], "alone").wait()
    });
    let parts = parts.into_iter().next().unwrap().unwrap().unwrap();
    assert_eq!(parts.device(0).map(|(_, range)| range), Some(0..24));
    assert_eq!(parts.concat().device().map(|(_, range)| range), Some(0..24));
    assert_eq!(memory.copies(), 0);
}
