//! Ranks as processes of an MPI job, on one host or many.
//!
//! Open MPI's library is loaded when [`world`] is called, and only then: the same binary runs where no MPI is. Only
//! messages between pairs of ranks are MPI's; collectives and the order in which sums are formed are the same code as
//! for threads, so results are equal bit for bit.
//!
//! ```text
//! mpirun -n 4 burnish ...                                          # one machine
//! mpirun -n 8 --host one:4,two:4 burnish ...                       # two machines
//! mpirun -n 4 --oversubscribe --mca mpi_yield_when_idle 1 ...      # more ranks than cores
//! ```
//!
//! How a job ends:
//! * A rank that panics, on any thread, prints its panic and ends every rank (`MPI_Abort`).
//! * A rank that dies is named by mpirun, which ends the others.
//! * A rank whose call fails tells the others, which get an error that names it. Each then ends by itself, with its own
//!   status; none waits in `MPI_Finalize`.
//! * A rank that ends in good order while another waits for it gives that one an error that names it.

mod engine;
mod error;
mod library;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use error::MpiError;

use self::engine::Engine;
use self::library::Library;
use crate::{CommError, Inbox, Link, Message, World};

/// Status with which a panicking rank ends the job.
pub const PANIC_STATUS: i32 = 101;

/// Most bytes of one MPI message, as MPI's counts are 32-bit: longer payloads travel in pieces.
pub const PIECE: usize = 1 << 30;

/// Variables of which a launcher sets at least one: Open MPI's mpirun, Slurm and others by PMIx, by PMI.
const LAUNCHED: [&str; 3] = ["OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"];
/// Variables in which launchers say how many ranks they started.
const RANKS: [&str; 2] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"];

/// The library that runs this process's job. Loaded once, never unloaded.
static LIBRARY: OnceLock<Library> = OnceLock::new();

/// Joins the MPI job that this process was started in. Call it once, and early.
///
/// From here on a panic on any thread ends the whole job, also one that the program would catch. When the world and all
/// that was made from it is dropped, the rank waits for the others and ends MPI; after a failure it does not.
///
/// # Errors
/// [`MpiError`], if there is no Open MPI, or the process was not started by its launcher.
pub fn world() -> Result<World, MpiError> {
    Mpi::start(PIECE).map(|link| World::over(Box::new(link)))
}

/// Ends every rank of the job with `status`, if this process is in one: what a program does about a failure that its
/// other ranks cannot see. It does not return then.
pub fn abort(status: i32) {
    if let Some(library) = LIBRARY.get() {
        library.abort(status);
    }
}

/// The messages between the processes of an MPI job.
pub struct Mpi {
    engine: Arc<Engine>,
}

impl Mpi {
    /// Joins the job as [`world`] does, with payloads in pieces of at most `piece` bytes.
    ///
    /// # Errors
    /// As [`world`].
    pub fn start(piece: usize) -> Result<Self, MpiError> {
        if LAUNCHED.iter().all(|variable| std::env::var_os(variable).is_none()) {
            return Err(MpiError::NotLaunched { variables: LAUNCHED.join(", ") });
        }
        let library = match LIBRARY.get() {
            Some(library) => library,
            None => {
                let opened = Library::open()?;
                LIBRARY.get_or_init(|| opened)
            }
        };
        match library.life() {
            (false, _) => {}
            (true, false) => return Err(MpiError::Again { state: "initialised" }),
            (true, true) => return Err(MpiError::Again { state: "finalised" }),
        }
        let path = library.path();
        let provided = library.init().map_err(|code| library.error(0, code))?;
        if provided < library::THREAD_SERIALIZED {
            return Err(MpiError::Threads { path: path.to_owned(), provided });
        }
        let within = library.own_world().map_err(|code| library.error(0, code))?;
        let engine = Engine::new(library, within, piece)?;
        let (rank, world) = (engine.rank(), engine.size());
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            hook(panic);
            if let (true, false) = library.life() {
                eprintln!("transport mpi: rank {rank} of {world} panicked: ending the job");
                library.abort(PANIC_STATUS);
            }
        }));
        for variable in RANKS {
            let launched = std::env::var(variable).ok().and_then(|ranks| ranks.parse::<usize>().ok());
            if let Some(launched) = launched.filter(|&launched| launched > world) {
                return Err(MpiError::Launcher { variable, launched, world, path: path.to_owned() });
            }
        }
        Ok(Self { engine })
    }

    /// What the library says of itself, such as `Open MPI v4.1.4`.
    #[must_use]
    pub fn version(&self) -> &str {
        self.engine.library().version()
    }
}

impl Link for Mpi {
    fn name(&self) -> &'static str {
        "mpi"
    }

    fn rank(&self) -> usize {
        self.engine.rank()
    }

    fn size(&self) -> usize {
        self.engine.size()
    }

    fn inbox(&self) -> &Inbox {
        self.engine.inbox()
    }

    fn post(&self, to: usize, message: Message) -> Result<(), CommError> {
        self.engine.post(to, &message)
    }

    fn poll(&self) -> Result<(), CommError> {
        self.engine.poll()
    }

    fn poll_every(&self) -> Option<Duration> {
        Some(self.engine.poll_every())
    }

    fn close(&self, _deadline: Duration) {
        // For others that go on, however long: a rank may have work left that concerns nobody else.
        self.engine.close();
    }
}
