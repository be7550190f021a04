//! [`ErrorCode`]: the word for a class of errors, by which `burnish explain` and `docs/errors.md` tell its cause and mend.
//!
//! A class is what a user does something else about; the message of the error says what, where, expected and got. Each
//! enum of errors maps its variants in one exhaustive match, so that a variant without a code does not compile.

use crate::{LayoutError, OptionFault, RegistryError, UnknownDtype, UnknownWord};

crate::choices! {
    /// A class of errors.
    #[derive(PartialOrd, Ord)]
    pub enum ErrorCode: "code", UnknownWord {
        /// A command, a shell or another word that there is not.
        UnknownCommand = "unknown-command",
        /// An option that the command does not have.
        UnknownOption = "unknown-option",
        /// A value of another type, out of range, or none of an option's words.
        BadValue = "bad-value",
        /// An option without which the command cannot run.
        MissingOption = "missing-option",
        /// Options that exclude each other.
        Conflict = "conflict",
        /// An option of TRL's, Transformers' or PEFT's that is not carried out.
        UnsupportedOption = "unsupported-option",
        /// A configuration file that cannot be read as one.
        BadConfig = "bad-config",
        /// Variables and limits of the process.
        BadEnvironment = "bad-environment",
        /// A part of the program that this build leaves out.
        NotBuilt = "not-built",

        /// A path where nothing is.
        NotFound = "not-found",
        /// A file or stream that cannot be read.
        CannotRead = "cannot-read",
        /// A file or stream that cannot be written.
        CannotWrite = "cannot-write",
        /// No room on the disk, or in a quota.
        DiskFull = "disk-full",
        /// An output that is there already.
        OutputExists = "output-exists",
        /// An output that another process writes.
        OutputInUse = "output-in-use",
        /// A file of weights that is cut off, or something else.
        DamagedFile = "damaged-file",

        /// A folder that is no model.
        NotAModel = "not-a-model",
        /// A key of a model's settings.
        BadModelConfig = "bad-model-config",
        /// A family, or a variety of one, that is not computed.
        UnsupportedModel = "unsupported-model",
        /// Weights that are not those of the configuration.
        WeightsMismatch = "weights-mismatch",
        /// A folder that is quantised already.
        QuantizedModel = "quantized-model",
        /// A head over tokens where a score is wanted, or the other way round.
        WrongHead = "wrong-head",
        /// More tokens than a model can place.
        TooLong = "too-long",
        /// A tokenizer that is missing or cannot be used.
        BadTokenizer = "bad-tokenizer",
        /// A chat template that is missing, fails or refuses.
        BadTemplate = "bad-template",
        /// A model or an adapter that another format has no form of.
        CannotExport = "cannot-export",
        /// An exported file that is not its source.
        ExportDiffers = "export-differs",

        /// A folder that is no adapter.
        NotAnAdapter = "not-an-adapter",
        /// A method of adapters, or a key of one, that is not computed.
        UnsupportedAdapter = "unsupported-adapter",
        /// Targets of adapters that match nothing, or not clearly.
        NoTarget = "no-target",
        /// An adapter of another model.
        AdapterMismatch = "adapter-mismatch",
        /// An adapter that no weight can take in.
        CannotMerge = "cannot-merge",

        /// No rows where rows are looked for.
        NoRows = "no-rows",
        /// A configuration, split or file of a data set that there is not.
        NoSplit = "no-split",
        /// A file of rows that cannot be read as one.
        BadRows = "bad-rows",
        /// Columns that are missing or hold something else.
        WrongColumns = "wrong-columns",
        /// Rows of another kind than the trainer takes.
        WrongRows = "wrong-rows",
        /// A prompt, completion or conversation without anything in it.
        EmptyText = "empty-text",
        /// Prompts that are not the beginning of their completions.
        DivergingPrompt = "diverging-prompt",
        /// Rows without a token to learn from.
        NothingToLearn = "nothing-to-learn",
        /// Token ids of another tokenizer.
        ForeignTokens = "foreign-tokens",

        /// No parameter that trains.
        NothingTrains = "nothing-trains",
        /// A loss, gradient, weight or result that is not a number.
        NotFinite = "not-finite",
        /// The memory is full.
        OutOfMemory = "out-of-memory",
        /// Reward functions that are missing, or do not fit their rows.
        BadReward = "bad-reward",
        /// A program that gives rewards and failed.
        RewardCommand = "reward-command",
        /// A server of completions that does not do its part.
        RolloutServer = "rollout-server",
        /// No checkpoint to go on from, or several.
        NoCheckpoint = "no-checkpoint",
        /// A checkpoint that is not what was written.
        DamagedCheckpoint = "damaged-checkpoint",
        /// A checkpoint of another run.
        CannotResume = "cannot-resume",
        /// A checkpoint that could not be saved.
        CannotSave = "cannot-save",

        /// A device that is not there, or not ready.
        NoDevice = "no-device",
        /// A device, or its driver, that failed.
        DeviceFailed = "device-failed",

        /// Launchers and options that do not agree on the ranks.
        BadLaunch = "bad-launch",
        /// A library that ranks communicate through and that is not there.
        NoTransport = "no-transport",
        /// Ranks that do not find each other.
        RanksNotMet = "ranks-not-met",
        /// What ranks know each other by is missing, or not the same.
        RankSecret = "rank-secret",
        /// Ranks with other options, files, models or calls.
        RanksDiffer = "ranks-differ",
        /// Another rank ended or failed.
        RankFailed = "rank-failed",
        /// Another rank is late, or stopped.
        RankSilent = "rank-silent",
        /// Messages between ranks that do not arrive, or not whole.
        RankNetwork = "rank-network",
        /// A model that so many ranks cannot share.
        CannotDivide = "cannot-divide",

        /// A repository, revision or file that the hub does not have.
        NotOnHub = "not-on-hub",
        /// A token that is missing, or may not do this.
        HubToken = "hub-token",
        /// The hub does not answer, or asks to wait.
        HubUnreachable = "hub-unreachable",
        /// What comes from the hub is not what it said.
        HubAnswer = "hub-answer",

        /// An address that a server cannot have.
        CannotListen = "cannot-listen",
        /// Arguments that do not fit together: a fault of the program that gave them.
        Internal = "internal",
    }
}

/// An error that belongs to a class.
pub trait Coded {
    /// The class.
    fn code(&self) -> ErrorCode;
}

/// What the operating system refused: the class of an error that says no more.
impl Coded for std::io::Error {
    fn code(&self) -> ErrorCode {
        use std::io::ErrorKind as Kind;
        match self.kind() {
            Kind::NotFound => ErrorCode::NotFound,
            Kind::StorageFull | Kind::QuotaExceeded | Kind::FileTooLarge => ErrorCode::DiskFull,
            Kind::AddrInUse | Kind::AddrNotAvailable => ErrorCode::CannotListen,
            Kind::ReadOnlyFilesystem | Kind::WriteZero | Kind::BrokenPipe => ErrorCode::CannotWrite,
            Kind::OutOfMemory => ErrorCode::OutOfMemory,
            _ => ErrorCode::CannotRead,
        }
    }
}

impl Coded for UnknownWord {
    fn code(&self) -> ErrorCode {
        ErrorCode::BadValue
    }
}

impl Coded for UnknownDtype {
    fn code(&self) -> ErrorCode {
        ErrorCode::BadValue
    }
}

impl Coded for OptionFault {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Range { .. } => ErrorCode::BadValue,
            Self::Conflict { .. } => ErrorCode::Conflict,
        }
    }
}

impl Coded for LayoutError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::NoRanks
            | Self::Ranks { .. }
            | Self::Dimension { .. }
            | Self::Length { .. }
            | Self::Ranges { .. }
            | Self::Shape { .. }
            | Self::Axes { .. } => ErrorCode::Internal,
        }
    }
}

impl Coded for RegistryError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Duplicate { .. } | Self::DanglingAlias { .. } => ErrorCode::Internal,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn words_are_anchors_and_their_own() {
        let words: BTreeSet<&str> = ErrorCode::ALL.iter().map(|code| code.name()).collect();
        assert_eq!(words.len(), ErrorCode::ALL.len());
        let plain = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        assert_eq!(words.iter().filter(|word| !plain(word)).count(), 0, "{words:?}");
        assert_eq!("disk-full".parse::<ErrorCode>(), Ok(ErrorCode::DiskFull));
    }
}
