//! The connections of a rank: a thread that reads and one that writes for each; rank 0 passes on what is for others.

use std::io::{self, BufReader, BufWriter, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use burnish_core::Dtype;

use super::TcpError;
use crate::transport::inbox::lock;
use crate::transport::{Aligned, Bytes, HEADER, Inbox, Message, MessageKind};
use crate::{Call, CommError, Op};

/// How long a rank that failed waits for the others to end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A message on its way: from, to, header, body.
struct Parcel {
    from: usize,
    to: usize,
    header: Box<[u8; HEADER]>,
    body: Bytes,
}

#[derive(Default)]
struct Ends {
    /// Ranks that said that they ended, or whose connection did.
    over: Vec<bool>,
    /// Ranks whose connection to this one has ended.
    closed: Vec<bool>,
    /// Somebody failed, or a connection broke.
    failed: bool,
}

/// The connections of one rank.
pub(super) struct Hub {
    rank: usize,
    size: usize,
    inbox: Inbox,
    /// To each other rank at rank 0, in rank order; to rank 0 elsewhere.
    writers: Mutex<Vec<Sender<Parcel>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    ends: Mutex<Ends>,
    ended: Condvar,
}

impl Hub {
    pub(super) fn start(rank: usize, size: usize, streams: Vec<TcpStream>) -> Result<Arc<Self>, TcpError> {
        let mut writers = Vec::new();
        let mut queues = Vec::new();
        for _ in &streams {
            let (writer, queue) = channel();
            writers.push(writer);
            queues.push(queue);
        }
        let hub = Arc::new(Self {
            rank,
            size,
            inbox: Inbox::new(),
            writers: Mutex::new(writers),
            threads: Mutex::default(),
            ends: Mutex::new(Ends { over: vec![false; size], closed: vec![false; size], failed: false }),
            ended: Condvar::new(),
        });
        for (place, (stream, queue)) in streams.into_iter().zip(queues).enumerate() {
            let peer = if rank == 0 { place + 1 } else { 0 };
            let failed = |error| TcpError::Address {
                rank,
                action: "keep a connection on",
                address: format!("rank {peer}"),
                source: Arc::new(error),
            };
            let reading = stream.try_clone().map_err(failed)?;
            let reader = Arc::clone(&hub);
            let name = |what: &str| Builder::new().name(format!("tcp {what} rank {peer}"));
            // Ends when the other side closes the connection, which is not waited for.
            name("from").spawn(move || reader.read(peer, reading)).map_err(failed)?;
            let writing = name("to").spawn(move || write(&stream, &queue)).map_err(failed)?;
            lock(&hub.threads).push(writing);
        }
        Ok(hub)
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    pub(super) fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    pub(super) fn post(&self, to: usize, message: Message) -> Result<(), CommError> {
        if matches!(message.kind, MessageKind::Failed | MessageKind::Disagreed) {
            lock(&self.ends).failed = true;
        }
        let header = Box::new(message.header());
        self.pass_on(Parcel { from: self.rank, to, header, body: message.body });
        Ok(())
    }

    fn pass_on(&self, parcel: Parcel) {
        let writers = lock(&self.writers);
        let place = if self.rank == 0 { parcel.to.wrapping_sub(1) } else { 0 };
        if let Some(writer) = writers.get(place) {
            // A writer that is gone has lost its connection, which its reader reports.
            let _ = writer.send(parcel);
        }
    }

    /// Takes in what comes from a connection, until it ends.
    fn read(&self, peer: usize, stream: TcpStream) {
        let mut stream = BufReader::with_capacity(1 << 16, stream);
        let error = loop {
            match self.read_one(&mut stream) {
                Ok(()) => {}
                Err(error) => break error,
            }
        };
        let expected = lock(&self.ends).over[peer];
        if !expected {
            self.lost(peer, &error);
        }
        lock(&self.ends).closed[peer] = true;
        self.ended.notify_all();
    }

    fn read_one(&self, stream: &mut impl Read) -> io::Result<()> {
        let mut way = [0; 8];
        stream.read_exact(&mut way)?;
        let number =
            |at: usize| u32::from_le_bytes([way[at], way[at + 1], way[at + 2], way[at + 3]]) as usize;
        let (from, to) = (number(0), number(4));
        let mut header = Box::new([0; HEADER]);
        stream.read_exact(&mut *header)?;
        let invalid = |error: CommError| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
        if from >= self.size || to >= self.size {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message from {from} to {to}")));
        }
        let mut body = Aligned::zeroed(Message::body_bytes(from, &*header).map_err(invalid)?);
        stream.read_exact(body.as_mut())?;
        let body = body.freeze();
        if to == self.rank {
            let message = Message::decode(from, &*header, body).map_err(invalid)?;
            self.deliver(from, message);
        } else {
            self.pass_on(Parcel { from, to, header, body });
        }
        Ok(())
    }

    fn deliver(&self, from: usize, message: Message) {
        let kind = message.kind;
        self.inbox.deliver(from, message);
        if kind != MessageKind::Call {
            let mut ends = lock(&self.ends);
            ends.over[from] |= kind == MessageKind::Left;
            ends.failed |= kind != MessageKind::Left;
            drop(ends);
            self.ended.notify_all();
        }
    }

    /// A connection ended that should not have: everybody is told.
    fn lost(&self, peer: usize, error: &io::Error) {
        let reason = format!("its connection ended: {error}");
        let message = Message {
            kind: MessageKind::Failed,
            channel: 0,
            phase: 0,
            index: peer as u64,
            call: Arc::new(Call::new(Op::Barrier, Dtype::U8, "", "", "")),
            checksum: None,
            body: Bytes::from_vec(reason.into_bytes()),
        };
        if self.rank == 0 {
            for to in (1..self.size).filter(|&to| to != peer) {
                let (header, body) = (Box::new(message.header()), message.body.clone());
                self.pass_on(Parcel { from: peer, to, header, body });
            }
        }
        let mut ends = lock(&self.ends);
        ends.failed = true;
        if peer == 0 {
            // Nothing comes from anybody any more.
            ends.over.fill(true);
        } else {
            ends.over[peer] = true;
        }
        drop(ends);
        self.deliver(peer, message);
    }

    /// Sees the last words off. The others stay until all have said that they end, and rank 0 until they have gone, as it
    /// passes their words on; after a failure only for a moment.
    pub(super) fn close(&self) {
        let began = Instant::now();
        let patience = if self.rank == 0 { 2 * LAST_WORDS } else { LAST_WORDS };
        let mut ends = lock(&self.ends);
        loop {
            let done = if self.rank == 0 { &ends.closed } else { &ends.over };
            let all = (0..self.size).all(|rank| rank == self.rank || done[rank]);
            if all || (ends.failed && began.elapsed() > patience) {
                break;
            }
            let step = self.ended.wait_timeout(ends, Duration::from_millis(100));
            ends = step.unwrap_or_else(PoisonError::into_inner).0;
        }
        // Connections that end from here on have ended in good order.
        ends.over.fill(true);
        drop(ends);
        lock(&self.writers).clear();
        for thread in lock(&self.threads).drain(..) {
            // A writer does not panic; if it did there is nothing left to write.
            let _ = thread.join();
        }
    }
}

/// Writes what is queued, until the queue or the connection ends.
fn write(stream: &TcpStream, queue: &Receiver<Parcel>) {
    let mut out = BufWriter::with_capacity(1 << 16, stream);
    while let Ok(first) = queue.recv() {
        let mut next = Some(first);
        while let Some(parcel) = next {
            // A connection that is lost is reported by its reader.
            if write_one(&mut out, &parcel).is_err() {
                return;
            }
            next = queue.try_recv().ok();
        }
        if out.flush().is_err() {
            return;
        }
    }
    // The other side learns that nothing more comes; it closes in its own time.
    let _ = stream.shutdown(Shutdown::Write);
}

fn write_one(out: &mut impl Write, parcel: &Parcel) -> io::Result<()> {
    for rank in [parcel.from, parcel.to] {
        out.write_all(&u32::try_from(rank).unwrap_or(u32::MAX).to_le_bytes())?;
    }
    out.write_all(&*parcel.header)?;
    out.write_all(parcel.body.as_bytes())
}
