//! Launcher variables: rank, world size and addresses that torchrun, Open MPI and Slurm set for their processes.
//!
//! | launcher | ranks | this rank | its number on the machine | where rank 0 is |
//! |---|---|---|---|---|
//! | torchrun | `WORLD_SIZE` | `RANK` | `LOCAL_RANK` | `MASTER_ADDR`, `MASTER_PORT` |
//! | Open MPI, or a PMI | `OMPI_COMM_WORLD_SIZE`, `PMI_SIZE`, `PMIX_RANK` | from MPI | `OMPI_COMM_WORLD_LOCAL_RANK` | from MPI |
//! | Slurm's srun | `SLURM_STEP_NUM_TASKS`, `SLURM_NTASKS` | `SLURM_PROCID` | `SLURM_LOCALID` | as torchrun; else the first host of `SLURM_STEP_NODELIST` and a port made of `SLURM_JOB_ID` |
//!
//! Where several set their variables, MPI comes before torchrun and torchrun before Slurm. A batch script of Slurm's has
//! `SLURM_NTASKS` too and is not one of several processes: `SLURM_NTASKS` counts where srun (`SLURM_STEP_ID`) or
//! `MASTER_ADDR` says that there are others.
//!
//! `BURNISH_DDP_SECRET`, or a file that `BURNISH_DDP_SECRET_FILE` names, is what ranks over [`tcp`](crate::tcp) know each
//! other by; `BURNISH_DDP_ENCRYPTION=1` hides what they say.

use std::path::Path;

use burnish_core::{Coded, ErrorCode};

use crate::DEADLINE;
use crate::tcp::{Rendezvous, Secret, SecretError};

/// Who started this process among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// Open MPI's mpirun, or another launcher with a PMI: ranks meet over [`mpi`](crate::mpi).
    Mpi,
    /// torchrun and launchers of its kind: ranks meet over [`tcp`](crate::tcp).
    Torchrun,
    /// Slurm's srun without a PMI: ranks meet over [`tcp`](crate::tcp).
    Slurm,
}

/// One launcher's job of several processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Who started it.
    pub launcher: Launcher,
    /// The variable that says so.
    pub variable: &'static str,
    /// How many processes there are; `None` where only MPI knows.
    pub size: Option<usize>,
}

/// A variable of a launcher that is not what it must be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "environment variable {variable}: expected {expected}, got {got}; set it on every rank, as launchers do, or unset it"
)]
pub struct LaunchError {
    /// The variable.
    pub variable: &'static str,
    /// What it must be.
    pub expected: &'static str,
    /// What it is.
    pub got: String,
}

/// The value of an environment variable.
pub(crate) type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The variables of this process.
pub(crate) fn environment(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

const SIZE: &str = "the number of ranks, at least 1";
const RANK: &str = "this process's rank, below the number of ranks";
const LOCAL_RANK: &str = "this process's number on its machine";
const ADDRESS: &str = "the host of rank 0";
const PORT: &str = "a port that is free on that host";
/// Most ranks that a launcher is believed.
const MOST_RANKS: usize = 1 << 20;

impl Launch {
    /// Every launcher whose variables speak of several processes, the one that counts first.
    ///
    /// # Errors
    /// [`LaunchError`] for a number that is none.
    pub fn all_from_env() -> Result<Vec<Self>, LaunchError> {
        Self::all(&environment)
    }

    pub(crate) fn all(variables: Variables<'_>) -> Result<Vec<Self>, LaunchError> {
        let mut found = Vec::new();
        // A rank of torchrun's among others whose number was lost would train alone and write over theirs.
        let lost = variables("WORLD_SIZE").is_none() && slurm_size(variables).is_none();
        if lost && let (Some(rank), Some(_)) = (variables("RANK"), variables("MASTER_ADDR")) {
            let got = format!("nothing beside RANK=`{rank}` and MASTER_ADDR");
            return Err(LaunchError { variable: "WORLD_SIZE", expected: SIZE, got });
        }
        for (launcher, names) in [
            (Launcher::Mpi, &["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"][..]),
            (Launcher::Torchrun, &["WORLD_SIZE"]),
            (Launcher::Slurm, slurm_size(variables).as_slice()),
        ] {
            for &variable in names {
                match size_in(variable, variables)? {
                    Some(size) if size > 1 => found.push(Self { launcher, variable, size: Some(size) }),
                    _ => {}
                }
            }
            if launcher == Launcher::Mpi && found.is_empty() && variables("PMIX_RANK").is_some() {
                found.push(Self { launcher, variable: "PMIX_RANK", size: None });
            }
        }
        Ok(found)
    }
}

/// The variable in which Slurm says how many tasks this one is of.
fn slurm_size(variables: Variables<'_>) -> Option<&'static str> {
    let there = |name: &&str| variables(name).is_some();
    let among_others = ["SLURM_STEP_ID", "MASTER_ADDR"].iter().any(there);
    let sizes = ["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"];
    sizes.into_iter().take(if among_others { 2 } else { 1 }).find(there)
}

/// This process's number on its machine, where the launcher says it: which device is its own.
///
/// # Errors
/// [`LaunchError`] for a number that is none.
pub fn local_rank() -> Result<Option<usize>, LaunchError> {
    local_rank_in(&environment)
}

/// This process's number among those that a launcher started on this machine, and how many they are, where it says both.
///
/// # Errors
/// [`LaunchError`] for a number that is none.
pub fn local_place() -> Result<Option<(usize, usize)>, LaunchError> {
    local_place_in(&environment)
}

fn local_place_in(variables: Variables<'_>) -> Result<Option<(usize, usize)>, LaunchError> {
    const LOCAL_SIZE: &str = "the number of processes on this machine";
    for (rank, size) in [
        ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
    ] {
        let place = (number(rank, LOCAL_RANK, variables)?, number(size, LOCAL_SIZE, variables)?);
        if let (Some(rank), Some(size)) = place
            && rank < size
        {
            return Ok(Some((rank, size)));
        }
    }
    Ok(None)
}

fn local_rank_in(variables: Variables<'_>) -> Result<Option<usize>, LaunchError> {
    number("LOCAL_RANK", LOCAL_RANK, variables)
}

fn number<T: std::str::FromStr>(
    variable: &'static str,
    expected: &'static str,
    variables: Variables<'_>,
) -> Result<Option<T>, LaunchError> {
    let Some(got) = variables(variable) else { return Ok(None) };
    let parsed = got.trim().parse().map(Some);
    parsed.map_err(|_| LaunchError { variable, expected, got: format!("`{got}`") })
}

fn required<T>(variable: &'static str, expected: &'static str, value: Option<T>) -> Result<T, LaunchError> {
    value.ok_or_else(|| LaunchError { variable, expected, got: "nothing".to_owned() })
}

fn size_in(variable: &'static str, variables: Variables<'_>) -> Result<Option<usize>, LaunchError> {
    match number(variable, SIZE, variables)? {
        Some(size) if size == 0 || size > MOST_RANKS => {
            Err(LaunchError { variable, expected: SIZE, got: format!("`{size}`") })
        }
        size => Ok(size),
    }
}

/// What the ranks of a job know each other by, where it is set.
fn secret(variables: Variables<'_>) -> Result<Option<Secret>, LaunchError> {
    if let Some(text) = variables("BURNISH_DDP_SECRET") {
        let wrong =
            |SecretError { expected, got }| LaunchError { variable: "BURNISH_DDP_SECRET", expected, got };
        return Secret::new(text.as_bytes()).map(Some).map_err(wrong);
    }
    let Some(path) = variables("BURNISH_DDP_SECRET_FILE") else { return Ok(None) };
    let wrong =
        |SecretError { expected, got }| LaunchError { variable: "BURNISH_DDP_SECRET_FILE", expected, got };
    Secret::from_file(Path::new(&path)).map(Some).map_err(wrong)
}

/// Whether `BURNISH_DDP_ENCRYPTION` asks the ranks of this job to hide what they say to each other.
///
/// # Errors
/// [`LaunchError`] if it is neither 1 nor 0.
pub fn encryption() -> Result<bool, LaunchError> {
    encrypt(&environment)
}

fn encrypt(variables: Variables<'_>) -> Result<bool, LaunchError> {
    const VARIABLE: &str = "BURNISH_DDP_ENCRYPTION";
    match variables(VARIABLE).as_deref().map(str::trim) {
        None | Some("0" | "false") => Ok(false),
        Some("1" | "true") => Ok(true),
        Some(got) => Err(LaunchError { variable: VARIABLE, expected: "1 or 0", got: format!("`{got}`") }),
    }
}

impl Rendezvous {
    /// Where and as whom this process meets the others, by the variables of torchrun or of Slurm; with a deadline of ten
    /// minutes, the secret of `BURNISH_DDP_SECRET` (the text) or `BURNISH_DDP_SECRET_FILE`, and encrypted where
    /// `BURNISH_DDP_ENCRYPTION` is 1.
    ///
    /// # Errors
    /// [`LaunchError`] if a variable is absent or wrong.
    pub fn from_env() -> Result<Self, LaunchError> {
        Self::read(&environment)
    }

    pub(crate) fn read(variables: Variables<'_>) -> Result<Self, LaunchError> {
        let slurm = if variables("WORLD_SIZE").is_some() { None } else { slurm_size(variables) };
        let (size_variable, rank_variable) = match slurm {
            Some(variable) => (variable, "SLURM_PROCID"),
            None => ("WORLD_SIZE", "RANK"),
        };
        let address = variables("MASTER_ADDR").or_else(|| slurm.and_then(|_| first_host(variables)));
        let address = required("MASTER_ADDR", ADDRESS, address)?;
        if address.trim().is_empty() {
            return Err(LaunchError {
                variable: "MASTER_ADDR",
                expected: ADDRESS,
                got: format!("`{address}`"),
            });
        }
        let port = match number("MASTER_PORT", PORT, variables)? {
            None if slurm.is_some() => job_port(variables)?,
            // Which port the system would take for it, no other rank could know.
            Some(0) => {
                return Err(LaunchError { variable: "MASTER_PORT", expected: PORT, got: "`0`".to_owned() });
            }
            port => port,
        };
        let port = required("MASTER_PORT", PORT, port)?;
        let size = required(size_variable, SIZE, size_in(size_variable, variables)?)?;
        let rank: usize = required(rank_variable, RANK, number(rank_variable, RANK, variables)?)?;
        if rank >= size {
            return Err(LaunchError {
                variable: rank_variable,
                expected: RANK,
                got: format!("`{rank}` of {size}"),
            });
        }
        let (secret, encrypt) = (secret(variables)?, encrypt(variables)?);
        Ok(Self { address, port, rank, size, deadline: DEADLINE, secret, encrypt })
    }
}

/// The first host of a Slurm step, which has rank 0.
fn first_host(variables: Variables<'_>) -> Option<String> {
    let lists = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
    lists.iter().find_map(|name| variables(name)).as_deref().and_then(first_of)
}

/// The first of hosts as Slurm writes them: of `node[07-09,12],login` it is `node07`.
fn first_of(hosts: &str) -> Option<String> {
    let (mut name, mut range) = (String::new(), None);
    for character in hosts.chars() {
        match (character, &mut range) {
            (',', None) => break,
            ('[', None) => range = Some(true),
            (']', Some(_)) => range = None,
            (',' | '-', Some(first)) => *first = false,
            (character, None | Some(true)) => name.push(character),
            (_, Some(false)) => {}
        }
    }
    (!name.is_empty()).then_some(name)
}

/// A port that jobs and steps on the same machine do not share.
fn job_port(variables: Variables<'_>) -> Result<Option<u16>, LaunchError> {
    let job: Option<u64> = number("SLURM_JOB_ID", "a job's number", variables)?;
    let step: Option<u64> = number("SLURM_STEP_ID", "a step's number", variables)?;
    Ok(job.map(|job| 20_000 + ((job + step.unwrap_or(0)) % 10_000) as u16))
}

impl Coded for LaunchError {
    fn code(&self) -> ErrorCode {
        ErrorCode::BadLaunch
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn set(variables: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        |name| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())
    }

    fn launched(variables: &'static [(&str, &str)]) -> Vec<(Launcher, &'static str, Option<usize>)> {
        let all = Launch::all(&set(variables)).unwrap();
        all.into_iter().map(|l| (l.launcher, l.variable, l.size)).collect()
    }

    #[test]
    fn each_launcher_is_known_by_its_variables() {
        assert_eq!(launched(&[]), []);
        assert_eq!(launched(&[("WORLD_SIZE", "1"), ("OMPI_COMM_WORLD_SIZE", "1")]), []);
        assert_eq!(launched(&[("WORLD_SIZE", " 4 ")]), [(Launcher::Torchrun, "WORLD_SIZE", Some(4))]);
        assert_eq!(launched(&[("PMIX_RANK", "0")]), [(Launcher::Mpi, "PMIX_RANK", None)]);
        assert_eq!(
            launched(&[("PMI_SIZE", "3"), ("PMIX_RANK", "0")]),
            [(Launcher::Mpi, "PMI_SIZE", Some(3))]
        );
        let both =
            [(Launcher::Mpi, "OMPI_COMM_WORLD_SIZE", Some(2)), (Launcher::Torchrun, "WORLD_SIZE", Some(4))];
        assert_eq!(launched(&[("WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_SIZE", "2")]), both);
    }

    /// A batch script has the job's variables, and runs alone.
    #[test]
    fn a_slurm_batch_script_is_alone() {
        assert_eq!(launched(&[("SLURM_NTASKS", "8"), ("SLURM_PROCID", "0"), ("SLURM_JOB_ID", "7")]), []);
        let step = launched(&[("SLURM_NTASKS", "8"), ("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "3")]);
        assert_eq!(step, [(Launcher::Slurm, "SLURM_NTASKS", Some(8))]);
        // One task of a larger job.
        assert_eq!(
            launched(&[("SLURM_NTASKS", "8"), ("SLURM_STEP_NUM_TASKS", "1"), ("SLURM_STEP_ID", "0")]),
            []
        );
        let step = launched(&[("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_PROCID", "0")]);
        assert_eq!(step, [(Launcher::Slurm, "SLURM_STEP_NUM_TASKS", Some(2))]);
    }

    #[test]
    fn what_is_no_number_is_told_with_its_variable() {
        let error =
            |variables: &'static [(&str, &str)]| Launch::all(&set(variables)).unwrap_err().to_string();
        let said = error(&[("WORLD_SIZE", "two")]);
        assert!(
            said.contains("variable WORLD_SIZE: expected the number of ranks, at least 1, got `two`"),
            "{said}"
        );
        assert!(
            error(&[("WORLD_SIZE", "0")]).contains("WORLD_SIZE")
                && error(&[("WORLD_SIZE", "")]).contains("``")
        );
        assert!(error(&[("OMPI_COMM_WORLD_SIZE", "-1")]).contains("OMPI_COMM_WORLD_SIZE"));
        let local = local_rank_in(&set(&[("LOCAL_RANK", "x")])).unwrap_err();
        assert_eq!((local.variable, local.got.as_str()), ("LOCAL_RANK", "`x`"));
        assert_eq!(local_rank_in(&set(&[("LOCAL_RANK", "3")])), Ok(Some(3)));
        let place = |variables: &'static [(&str, &str)]| local_place_in(&set(variables));
        assert_eq!(place(&[("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "4")]), Ok(Some((1, 4))));
        assert_eq!(place(&[("SLURM_LOCALID", "1"), ("SLURM_NTASKS_PER_NODE", "2")]), Ok(Some((1, 2))));
        assert_eq!(place(&[("LOCAL_RANK", "4"), ("LOCAL_WORLD_SIZE", "4")]), Ok(None));
        assert_eq!(place(&[("LOCAL_RANK", "1")]), Ok(None));
        assert!(place(&[("OMPI_COMM_WORLD_LOCAL_RANK", "-1")]).is_err());
    }

    #[test]
    fn ranks_meet_where_the_launcher_says() {
        let torchrun =
            &[("WORLD_SIZE", "4"), ("RANK", "3"), ("MASTER_ADDR", "one"), ("MASTER_PORT", "29500")];
        let place = Rendezvous::read(&set(torchrun)).unwrap();
        assert_eq!((place.address.as_str(), place.port, place.rank, place.size), ("one", 29500, 3, 4));
        let slurm = &[
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_PROCID", "1"),
            ("SLURM_JOB_ID", "123456"),
            ("SLURM_STEP_ID", "2"),
            ("SLURM_STEP_NODELIST", "gpu[07-09,12],login"),
        ];
        let place = Rendezvous::read(&set(slurm)).unwrap();
        assert_eq!((place.address.as_str(), place.port, place.rank, place.size), ("gpu07", 23_458, 1, 2));
    }

    #[test]
    fn what_a_rendezvous_lacks_is_named() {
        let lacks = |variables: &'static [(&str, &str)]| Rendezvous::read(&set(variables)).unwrap_err();
        assert_eq!(lacks(&[]).variable, "MASTER_ADDR");
        assert_eq!(lacks(&[("MASTER_ADDR", "one")]).variable, "MASTER_PORT");
        let no_rank = &[("MASTER_ADDR", "one"), ("MASTER_PORT", "29500"), ("WORLD_SIZE", "2")];
        assert_eq!(lacks(no_rank).variable, "RANK");
        let beyond =
            lacks(&[("MASTER_ADDR", "one"), ("MASTER_PORT", "29500"), ("WORLD_SIZE", "2"), ("RANK", "2")]);
        assert_eq!((beyond.variable, beyond.got.as_str()), ("RANK", "`2` of 2"));
        assert_eq!(lacks(&[("MASTER_ADDR", "one"), ("MASTER_PORT", "70000")]).got, "`70000`");
        assert_eq!(lacks(&[("MASTER_ADDR", "one"), ("MASTER_PORT", "0")]).got, "`0`");
        assert_eq!(lacks(&[("MASTER_ADDR", " ")]).variable, "MASTER_ADDR");
    }

    #[test]
    fn what_contradicts_itself_is_no_run_alone() {
        let lost = Launch::all(&set(&[("RANK", "1"), ("MASTER_ADDR", "one")])).unwrap_err();
        assert_eq!(lost.variable, "WORLD_SIZE");
        assert_eq!(Launch::all(&set(&[("RANK", "1")])), Ok(vec![]));
        let huge = Launch::all(&set(&[("WORLD_SIZE", "1000000000000")])).unwrap_err();
        assert_eq!(huge.got, "`1000000000000`");
    }

    #[test]
    fn a_secret_comes_with_the_job_and_is_not_shown() {
        let mut job =
            vec![("WORLD_SIZE", "4"), ("RANK", "3"), ("MASTER_ADDR", "one"), ("MASTER_PORT", "29500")];
        let read = |job: &[(&'static str, &'static str)]| {
            let job = job.to_vec();
            Rendezvous::read(&move |name| job.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
        };
        assert_eq!(read(&job).unwrap().secret, None);
        job.push(("BURNISH_DDP_SECRET", "an example of a secret"));
        let met = read(&job).unwrap();
        assert_eq!(met.secret, Some(Secret::new(b"an example of a secret").unwrap()));
        assert!(!format!("{met:?}").contains("example"));
        job.pop();
        job.push(("BURNISH_DDP_SECRET", "too short"));
        let error = read(&job).unwrap_err().to_string();
        assert!(error.contains("BURNISH_DDP_SECRET") && !error.contains("too short"), "{error}");
        job.pop();
        job.push(("BURNISH_DDP_SECRET_FILE", "/nowhere/secret"));
        assert!(read(&job).unwrap_err().to_string().contains("/nowhere/secret"));
        job.pop();
        assert!(!read(&job).unwrap().encrypt);
        for (text, encrypts) in [("1", true), ("0", false)] {
            job.push(("BURNISH_DDP_ENCRYPTION", text));
            assert_eq!(read(&job).unwrap().encrypt, encrypts);
            job.pop();
        }
        job.push(("BURNISH_DDP_ENCRYPTION", "on"));
        let error = read(&job).unwrap_err().to_string();
        assert!(error.contains("BURNISH_DDP_ENCRYPTION: expected 1 or 0, got `on`"), "{error}");
    }

    #[test]
    fn hosts_are_read_as_slurm_writes_them() {
        for (hosts, first) in
            [("one", "one"), ("one,two", "one"), ("n[3,5-7]", "n3"), ("r[1-2]n[04-09]-ib,x", "r1n04-ib")]
        {
            assert_eq!(first_of(hosts).as_deref(), Some(first), "{hosts}");
        }
        assert_eq!(first_of(""), None);
    }
}
