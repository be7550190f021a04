//! What the ranks of a communicator send each other: frames over Unix sockets, one connection for each direction.
//!
//! Every rank listens in a folder that all know. A rank that has heard from all others removes its socket, as everybody
//! is connected then; the last one removes the folder.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::lock;

/// How often a rank looks whether another has come.
const PACE: Duration = Duration::from_millis(1);

#[derive(Default)]
struct Arrived {
    frames: HashMap<(usize, u64), Vec<u8>>,
    /// The device of each rank that has come.
    devices: BTreeMap<usize, u64>,
    gone: BTreeSet<usize>,
    aborted: bool,
}

/// What has come from the other ranks.
#[derive(Default)]
pub(crate) struct Inbox {
    arrived: Mutex<Arrived>,
    changed: Condvar,
}

/// Why nothing comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Nothing {
    Aborted,
    /// The sender has ended.
    Gone,
}

impl Inbox {
    pub(crate) fn abort(&self) {
        lock(&self.arrived).aborted = true;
        self.changed.notify_all();
    }

    pub(crate) fn is_aborted(&self) -> bool {
        lock(&self.arrived).aborted
    }

    /// Waits for a frame.
    pub(crate) fn take(&self, from: usize, tag: u64) -> Result<Vec<u8>, Nothing> {
        let mut arrived = lock(&self.arrived);
        loop {
            if arrived.aborted {
                return Err(Nothing::Aborted);
            }
            if let Some(frame) = arrived.frames.remove(&(from, tag)) {
                return Ok(frame);
            }
            if arrived.gone.contains(&from) {
                return Err(Nothing::Gone);
            }
            arrived = self.changed.wait(arrived).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until the communicator is aborted.
    pub(crate) fn wait_for_abort(&self) {
        let mut arrived = lock(&self.arrived);
        while !arrived.aborted {
            arrived = self.changed.wait(arrived).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Reads what rank by rank comes over a connection, until it ends.
    fn listen(&self, mut stream: UnixStream) {
        let mut rank = None;
        let ended = (|| -> io::Result<()> {
            let from = word(&mut stream)? as usize;
            let device = word(&mut stream)?;
            rank = Some(from);
            lock(&self.arrived).devices.insert(from, device);
            self.changed.notify_all();
            loop {
                let tag = word(&mut stream)?;
                let mut frame = vec![0; word(&mut stream)? as usize];
                stream.read_exact(&mut frame)?;
                lock(&self.arrived).frames.insert((from, tag), frame);
                self.changed.notify_all();
            }
        })();
        if let (Err(_), Some(rank)) = (ended, rank) {
            lock(&self.arrived).gone.insert(rank);
            self.changed.notify_all();
        }
    }
}

fn word(stream: &mut UnixStream) -> io::Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// The connections of one rank to the others.
pub(crate) struct Exchange {
    streams: Vec<Option<Mutex<UnixStream>>>,
}

/// Why ranks do not come together.
pub(crate) enum Apart {
    Aborted,
    /// Two ranks on one device.
    Twice,
    System(io::Error),
}

impl From<io::Error> for Apart {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl Exchange {
    /// Waits until all ranks are connected.
    pub(crate) fn join(
        folder: &Path,
        me: usize,
        size: usize,
        device: u64,
        inbox: &Arc<Inbox>,
    ) -> Result<Self, Apart> {
        let own = folder.join(me.to_string());
        let joined = Self::connect(folder, &own, me, size, device, inbox);
        let _ = std::fs::remove_file(&own);
        // Not empty while others are still about it.
        let _ = std::fs::remove_dir(folder);
        joined
    }

    fn connect(
        folder: &Path,
        own: &Path,
        me: usize,
        size: usize,
        device: u64,
        inbox: &Arc<Inbox>,
    ) -> Result<Self, Apart> {
        let listener = UnixListener::bind(own)?;
        listener.set_nonblocking(true)?;
        let mut streams: Vec<Option<Mutex<UnixStream>>> = (0..size).map(|_| None).collect();
        let mut accepted = 1;
        loop {
            if inbox.is_aborted() {
                return Err(Apart::Aborted);
            }
            while accepted < size {
                match listener.accept() {
                    Ok((stream, _)) => {
                        stream.set_nonblocking(false)?;
                        let inbox = Arc::clone(inbox);
                        std::thread::spawn(move || inbox.listen(stream));
                        accepted += 1;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error.into()),
                }
            }
            for peer in (0..size).filter(|&peer| peer != me) {
                if streams[peer].is_none()
                    && let Ok(mut stream) = UnixStream::connect(folder.join(peer.to_string()))
                {
                    stream.write_all(&[me as u64, device].map(u64::to_le_bytes).concat())?;
                    streams[peer] = Some(Mutex::new(stream));
                }
            }
            let devices: BTreeMap<usize, u64> = lock(&inbox.arrived).devices.clone();
            let all = devices.len() + 1 == size && streams.iter().flatten().count() + 1 == size;
            if all {
                let different: BTreeSet<u64> = devices.values().copied().chain([device]).collect();
                return if different.len() == size { Ok(Self { streams }) } else { Err(Apart::Twice) };
            }
            std::thread::sleep(PACE);
        }
    }

    /// Sends a frame; one that cannot be sent is for a rank that has ended, which shows when something from it is due.
    pub(crate) fn send(&self, to: usize, tag: u64, frame: &[u8]) {
        if let Some(stream) = &self.streams[to] {
            let mut stream = lock(stream);
            let header = [tag, frame.len() as u64].map(u64::to_le_bytes).concat();
            let _ = stream.write_all(&header).and_then(|()| stream.write_all(frame));
        }
    }
}
