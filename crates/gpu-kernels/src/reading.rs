//! `Reading`: numbers on their way from the device.

use std::sync::Arc;

use cubecl_core::bytes::Bytes;
use cubecl_core::future::{DynFut, reader::read_sync};
use cubecl_core::server::{Handle, ServerError};

use crate::Client;

/// Numbers in f32 that a device copies to the host at the place among its work where it was asked; whatever is launched behind
/// does not hold them up.
pub struct Reading {
    // Before the client, which it may borrow.
    copy: Option<DynFut<Result<Vec<Bytes>, ServerError>>>,
    _client: Arc<Client>,
}

impl Reading {
    /// Begins to read. Nothing waits for the device, only for launches before this one to be handed to it.
    #[must_use]
    pub fn begin(client: &Client, memory: Handle) -> Self {
        let client = Arc::new(client.clone());
        // SAFETY: the client lies where it is for as long as the `Arc` beside the future is held, and nothing takes it mutably;
        // the future goes first. (What `read_async` returns borrows nothing, but its type does not say so.)
        let held: &'static Client = unsafe { &*Arc::as_ptr(&client) };
        Self { copy: Some(Box::pin(held.read_async(vec![memory]))), _client: client }
    }

    /// Waits for the numbers.
    ///
    /// # Panics
    /// If the device fails.
    #[must_use]
    pub fn wait(mut self) -> Vec<f32> {
        let reading = self.copy.take().expect("invariant: a reading is waited for once");
        let bytes = read_sync(reading).unwrap_or_else(|error| panic!("Error while reading data: {error}"));
        bytes[0].as_chunks().0.iter().map(|&number| f32::from_ne_bytes(number)).collect()
    }
}

impl Drop for Reading {
    /// The host's memory is in use until the copy is done.
    fn drop(&mut self) {
        if let Some(reading) = self.copy.take() {
            let _ = read_sync(reading);
        }
    }
}
