//! Errors of the MPI transport: the library not found, another MPI than Open MPI, return codes.

use burnish_core::{Coded, ErrorCode};
use thiserror::Error;

/// An MPI job that cannot start, or a call of the MPI library that failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MpiError {
    /// The MPI library could not be loaded.
    #[error(
        "transport mpi: no Open MPI library on this machine: tried {tried}: {said}; install Open MPI 4 or 5 \
         (Debian: apt-get install openmpi-bin), or name its library in BURNISH_MPI_LIBRARY, or use \
         `--transport local` on one machine"
    )]
    Missing {
        /// Names and paths tried, in order.
        tried: String,
        /// What the loader said to the last of them.
        said: String,
    },
    /// The library is another MPI than Open MPI: its binary interface differs.
    #[error(
        "transport mpi: `{path}` is not Open MPI: expected a version text beginning with `Open MPI`, got \
         `{version}`; the binary interface of other MPIs (MPICH, Intel MPI) differs: install Open MPI 4 or 5 and \
         start the job with its mpirun"
    )]
    Foreign {
        /// The library's name or path.
        path: String,
        /// The first line of what `MPI_Get_library_version` says, or the name of a symbol that is absent.
        version: String,
    },
    /// A function or object that every Open MPI 4 and 5 exports is absent.
    #[error(
        "transport mpi: `{path}` has no symbol `{symbol}`; expected the library of Open MPI 4 or 5 (libmpi.so.40)"
    )]
    Symbol {
        /// The library's name or path.
        path: String,
        /// The symbol.
        symbol: &'static str,
    },
    /// The process was not started as a rank of a job.
    #[error(
        "transport mpi: this process is not a rank of an MPI job: none of {variables} is set; start it as \
         `mpirun -n <ranks> <program> ...`, or use `--transport local --nproc <ranks>`"
    )]
    NotLaunched {
        /// The variables looked for.
        variables: String,
    },
    /// The launcher and the library do not belong together.
    #[error(
        "transport mpi: the launcher started {launched} ranks ({variable}), but `{path}` sees a world of {world}: \
         launcher and library belong to different MPIs; start the job with Open MPI's own mpirun"
    )]
    Launcher {
        /// Variable that holds the launcher's number of ranks.
        variable: &'static str,
        /// Ranks according to the launcher.
        launched: usize,
        /// Ranks according to the library.
        world: usize,
        /// The library's name or path.
        path: String,
    },
    /// Somebody else started MPI in this process, or it has ended.
    #[error(
        "transport mpi: MPI was {state} in this process before; it starts and ends once in a process's life: keep a \
         world for as long as ranks communicate, and leave MPI_Init to burnish"
    )]
    Again {
        /// `initialised by other code` or `finalised`.
        state: &'static str,
    },
    /// The library was built without support for threads.
    #[error(
        "transport mpi: `{path}` gives thread level {provided}, expected 3 (MPI_THREAD_MULTIPLE): a rank \
         communicates from more than one thread; use an Open MPI built with threads (every distribution's is)"
    )]
    Threads {
        /// The library's name or path.
        path: String,
        /// Level that `MPI_Init_thread` gave.
        provided: i32,
    },
    /// The world has ended, and MPI with it.
    #[error(
        "transport mpi: rank {rank}: MPI has ended in this process; keep the world, or a group of it, for as long as \
         ranks communicate"
    )]
    Ended {
        /// The rank, of the world.
        rank: usize,
    },
    /// A call returned an error code.
    #[error(
        "transport mpi: rank {rank}: {function} failed with code {code}: {text}; see what Open MPI and the other ranks printed, and whether all hosts run the same Open MPI"
    )]
    Call {
        /// The rank that called, of the world.
        rank: usize,
        /// The MPI function.
        function: &'static str,
        /// The code it returned.
        code: i32,
        /// What `MPI_Error_string` says of the code.
        text: String,
    },
}

impl Coded for MpiError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Missing { .. } | Self::Foreign { .. } | Self::Symbol { .. } | Self::Threads { .. } => {
                ErrorCode::NoTransport
            }
            Self::NotLaunched { .. } | Self::Launcher { .. } => ErrorCode::BadLaunch,
            Self::Again { .. } | Self::Ended { .. } => ErrorCode::Internal,
            Self::Call { .. } => ErrorCode::RankNetwork,
        }
    }
}
