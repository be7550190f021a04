//! Errors of data sets, from a file's line to a batch.

use std::path::PathBuf;

use burnish_core::{Coded, ErrorCode, OptionFault, UnknownWord};

use crate::row::RowKind;
use crate::row_origin::RowOrigin;

/// Every failure of this crate. Each message says what, where, expected, got, and the mend.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// Nothing at the given path.
    #[error(
        "no data at `{path}`: expected a .jsonl, .json, .csv, .parquet or .arrow file, a folder of them, or a glob; check \
         `dataset_name`"
    )]
    Missing {
        /// The path as given.
        path: String,
    },
    /// A folder without data files.
    #[error(
        "folder `{path}` holds no .jsonl, .json, .csv, .parquet or .arrow file; put the rows in `train.jsonl` \
         (and `test.jsonl`)"
    )]
    EmptyFolder {
        /// The folder.
        path: PathBuf,
    },
    /// A glob that matches no file.
    #[error("glob `{pattern}` matches no file; check `dataset_name`")]
    EmptyGlob {
        /// The pattern as given.
        pattern: String,
    },
    /// A glob that cannot be parsed.
    #[error(
        "`{pattern}` is not a valid glob ({reason}); quote `[`, `*` and `?` as `[[]`, `[*]`, `[?]` if they are part of the name"
    )]
    BadGlob {
        /// The pattern as given.
        pattern: String,
        /// The parser's words.
        reason: String,
    },
    /// A format that is not read.
    #[error(
        "`{path}` is {format}, expected JSON lines (.jsonl), a JSON array (.json), .csv, .tsv, .txt, .parquet or .arrow; \
         convert it, one JSON object per line"
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// The format's name.
        format: &'static str,
    },
    /// A configuration that the data set does not have.
    #[error(
        "data set `{dataset}` has no configuration `{name}`, it has {names}; set `dataset_config` to one of them"
    )]
    NoConfig {
        /// The data set.
        dataset: String,
        /// The name as given.
        name: String,
        /// The configurations there are.
        names: String,
    },
    /// Several configurations, and none is meant more than another.
    #[error("data set `{dataset}` has the configurations {names}; choose one with `dataset_config`")]
    NeedsConfig {
        /// The data set.
        dataset: String,
        /// The configurations there are.
        names: String,
    },
    /// A split that the data set does not have.
    #[error(
        "data set `{dataset}` has no split `{split}`, it has {splits}; set `dataset_train_split` or `dataset_test_split`"
    )]
    NoSplit {
        /// The data set.
        dataset: String,
        /// The split as given.
        split: String,
        /// The splits there are.
        splits: String,
    },
    /// A part of a split that cannot be read.
    #[error(
        "`{slice}` names no slice of a split; write `train`, `train[:1000]`, `train[10%:20%]` or a sum of them with `+`"
    )]
    BadSlice {
        /// The text as given.
        slice: String,
    },
    /// A name or pattern of `data_files` that no file has.
    #[error("data set `{dataset}` has no file `{pattern}`; check `data_files`, or the card's `configs`")]
    NoDataFile {
        /// The data set.
        dataset: String,
        /// The patterns.
        pattern: String,
    },
    /// A column that is to be kept and is not there.
    #[error("{place}: no column `{column}` to keep, only {columns}; check `columns`")]
    NoColumn {
        /// File and line.
        place: RowOrigin,
        /// The column.
        column: String,
        /// The columns found.
        columns: String,
    },
    /// A folder that is no data set.
    #[error("folder `{path}` holds more than {most} files; name the folder or the glob that holds the rows")]
    TooManyFiles {
        /// The folder.
        path: PathBuf,
        /// The limit.
        most: usize,
    },
    /// A row that does not end.
    #[error("{place}: the row is longer than {most} bytes; is the file damaged?")]
    HugeRow {
        /// File and line.
        place: RowOrigin,
        /// The limit.
        most: u64,
    },
    /// A small file of columns whose rows have no end.
    #[error(
        "{place}: the rows up to here take more than {most} bytes, far more than the {format} file has: the same values \
         again and again; is it damaged? Otherwise write its rows as JSON lines"
    )]
    ManyOfLittle {
        /// File and row.
        place: RowOrigin,
        /// What the file is.
        format: &'static str,
        /// The limit.
        most: u64,
    },
    /// Text that is not UTF-8.
    #[error("{place}: not valid UTF-8; convert the file")]
    NotUtf8 {
        /// File and line.
        place: RowOrigin,
    },
    /// A line of a CSV file with too many values.
    #[error(
        "{place}: {got} values, the first line names {expected} columns; quote values that hold the separator, or name all \
         columns"
    )]
    Columns {
        /// File and line.
        place: RowOrigin,
        /// Columns named.
        expected: usize,
        /// Values found.
        got: usize,
    },
    /// A CSV file that cannot be read.
    #[error("{place}: not valid CSV: {reason}")]
    Csv {
        /// File and line.
        place: RowOrigin,
        /// The parser's words.
        reason: String,
    },
    /// Pictures or sound in a row.
    #[error(
        "{place}: `{column}` is not text; only the text part of a model trains here: leave such rows out, or the column where the \
         text stands without it"
    )]
    NotText {
        /// The file, with the line where there are lines.
        place: String,
        /// The column, or the part of a message.
        column: String,
    },
    /// A file of columns that cannot be read.
    #[error("`{path}` is not a whole {format} file: {reason}; copy or download it again")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The format's name.
        format: &'static str,
        /// The reader's words.
        reason: String,
    },
    /// The operating system refused.
    #[error("cannot read `{path}`: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A line that is not JSON.
    #[error("{place}: not valid JSON: {reason}; each line must be one complete JSON object")]
    Json {
        /// File and line.
        place: RowOrigin,
        /// The parser's words.
        reason: String,
    },
    /// A line that is JSON but no object.
    #[error("{place}: expected a JSON object such as {{\"text\": \"...\"}}, got {got}")]
    NotAnObject {
        /// File and line.
        place: RowOrigin,
        /// The JSON type found.
        got: &'static str,
    },
    /// No row at all.
    #[error("`{dataset}` holds no rows; expected at least one")]
    Empty {
        /// The files read.
        dataset: String,
    },
    /// Columns that belong to no known type.
    #[error(
        "{place}: columns {columns} form no known row type; expected `{text_field}`, `messages`, `prompt` + `completion`, \
         `prompt` + `chosen` + `rejected`, `prompt` or `input_ids`; rename a column or set `dataset_text_field`"
    )]
    UnknownColumns {
        /// File and line.
        place: RowOrigin,
        /// The columns found.
        columns: String,
        /// The configured text column.
        text_field: String,
    },
    /// A completion that follows no prompt.
    #[error(
        "{place}: columns {columns} have a `completion` and no `prompt`; add a column `prompt`, which may be \"\""
    )]
    NoPrompt {
        /// File and line.
        place: RowOrigin,
        /// The columns found.
        columns: String,
    },
    /// A column that a trainer needs is not there.
    #[error("{place}: {trainer} needs a column `{column}`, got {columns}; add or rename it")]
    MissingColumn {
        /// File and line.
        place: RowOrigin,
        /// The trainer.
        trainer: &'static str,
        /// The column.
        column: &'static str,
        /// The columns found.
        columns: String,
    },
    /// A column of the wrong JSON type.
    #[error("{place}: column `{column}`: expected {expected}, got {got}")]
    ColumnType {
        /// File and line.
        place: RowOrigin,
        /// The column, possibly with a path into it.
        column: String,
        /// What was expected.
        expected: &'static str,
        /// What was found.
        got: &'static str,
    },
    /// Text in one column of a row, messages in another.
    #[error(
        "{place}: column `{first}` holds {first_is} but `{second}` holds {second_is}; give both as strings or both as message lists"
    )]
    MixedText {
        /// File and line.
        place: RowOrigin,
        /// One column.
        first: &'static str,
        /// What it holds.
        first_is: &'static str,
        /// The other column.
        second: &'static str,
        /// What it holds.
        second_is: &'static str,
    },
    /// Columns that must have one length.
    #[error(
        "{place}: column `{column}` has {got} entries, `input_ids` has {expected}; they must have the same length"
    )]
    ColumnLength {
        /// File and line.
        place: RowOrigin,
        /// The column.
        column: &'static str,
        /// Length of `input_ids`.
        expected: usize,
        /// Length of the column.
        got: usize,
    },
    /// Rows of different types in one data set.
    #[error(
        "{place}: this row is {got}, the first row ({first}) is {expected}; a data set holds one type of row, split the file"
    )]
    MixedRows {
        /// File and line.
        place: RowOrigin,
        /// Where the first row is.
        first: RowOrigin,
        /// The first row's type.
        expected: RowKind,
        /// This row's type.
        got: RowKind,
    },
    /// A row type the trainer cannot use.
    #[error("{place}: {trainer} needs {needs}, got {got}; {mend}")]
    WrongKind {
        /// File and line.
        place: RowOrigin,
        /// The trainer.
        trainer: &'static str,
        /// What it accepts.
        needs: &'static str,
        /// What was found.
        got: RowKind,
        /// The mend.
        mend: &'static str,
    },
    /// A token id beyond the vocabulary.
    #[error(
        "{place}: `input_ids[{index}]` is {id}, the vocabulary has {vocab} entries; the rows were tokenised for another model"
    )]
    TokenRange {
        /// File and line.
        place: RowOrigin,
        /// Position in the row.
        index: usize,
        /// The id.
        id: u64,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// No tokenizer in the folder.
    #[error(
        "no tokenizer in `{folder}`: looked for {looked_for}; save the tokenizer in the fast format (`tokenizer.json`) beside the model"
    )]
    NoTokenizer {
        /// The model folder.
        folder: PathBuf,
        /// The file names tried.
        looked_for: String,
    },
    /// `tokenizer.json` cannot be used.
    #[error("`{path}` is not a usable tokenizer: {reason}")]
    BadTokenizer {
        /// The file.
        path: PathBuf,
        /// The library's words.
        reason: String,
    },
    /// A JSON file beside the model cannot be parsed.
    #[error("`{path}` is not valid: {reason}")]
    BadFile {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A tokenizer with more tokens than the model.
    #[error(
        "{place}: the tokenizer gives token {id}, and the model's vocabulary has {vocab} entries: tokenizer.json or \
         tokenizer_config.json is of another model"
    )]
    TokenBeyond {
        /// The row.
        place: RowOrigin,
        /// The token.
        id: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A named token is not in the vocabulary.
    #[error("{name} `{token}` is not in the tokenizer's vocabulary; choose an existing token")]
    UnknownToken {
        /// Its role (`eos_token`, `pad_token`).
        name: &'static str,
        /// The text.
        token: String,
    },
    /// No end-of-sequence token is known.
    #[error(
        "the tokenizer has no eos token (looked in tokenizer_config.json, special_tokens_map.json, generation_config.json, \
         config.json); set `eos_token`, otherwise the model never learns to stop"
    )]
    NoEos,
    /// The library failed on a text.
    #[error("{place}: cannot tokenise: {reason}")]
    Tokenise {
        /// File and line.
        place: RowOrigin,
        /// The library's words.
        reason: String,
    },
    /// Ids that cannot be turned into text.
    #[error("cannot decode token ids: {reason}")]
    Decode {
        /// The library's words.
        reason: String,
    },
    /// Chat rows without a chat template.
    #[error(
        "{place}: the row holds messages but the model folder has no chat template (looked for chat_template.jinja and \
         `chat_template` in tokenizer_config.json); add one or set `chat_template_path`"
    )]
    NoTemplate {
        /// File and line.
        place: RowOrigin,
    },
    /// A template that does not parse.
    #[error("chat template `{name}` does not parse: {reason}")]
    TemplateSyntax {
        /// File or name.
        name: String,
        /// The engine's words, with the line.
        reason: String,
    },
    /// None of several named templates applies.
    #[error(
        "the model folder has several chat templates ({names}) and none is called `default`; pick one with `chat_template_path`"
    )]
    NoDefaultTemplate {
        /// Their names.
        names: String,
    },
    /// The template called `raise_exception`.
    #[error("{place}: the chat template refuses this conversation: {message}")]
    TemplateRaised {
        /// File and line.
        place: RowOrigin,
        /// The template's own message.
        message: String,
    },
    /// The template asked for more work or memory than a rendering may use.
    #[error("{place}: the chat template was stopped: {reason}; is it the one of this model?")]
    TemplateBound {
        /// Where the row is.
        place: RowOrigin,
        /// The bound.
        reason: String,
    },
    /// The template failed otherwise.
    #[error("{place}: the chat template fails on this conversation: {reason}")]
    TemplateFailed {
        /// File and line.
        place: RowOrigin,
        /// The engine's words, with the template's line.
        reason: String,
    },
    /// A conversation with no message.
    #[error("{place}: column `{column}` is an empty conversation; give at least one message")]
    EmptyConversation {
        /// File and line.
        place: RowOrigin,
        /// The column.
        column: &'static str,
    },
    /// Two conversations that share no first message.
    #[error(
        "{place}: `chosen` and `rejected` share no first message, so there is no prompt in them; begin both with the same \
         messages or give a `prompt` column"
    )]
    NoSharedPrompt {
        /// File and line.
        place: RowOrigin,
    },
    /// A prompt without a token.
    #[error("{place}: column `prompt` is empty, there is nothing to continue; give a prompt or drop the row")]
    EmptyPrompt {
        /// File and line.
        place: RowOrigin,
    },
    /// A completion in which there is nothing to score.
    #[error(
        "{place}: column `{column}` is an empty completion, there is nothing to score; give an answer or drop the row"
    )]
    EmptyCompletion {
        /// File and line.
        place: RowOrigin,
        /// The column.
        column: &'static str,
    },
    /// A prompt that the template writes otherwise once a completion follows.
    #[error(
        "{place}: the prompt alone is not the start of `prompt` + `{column}` as the chat template writes them: after \
         {shared:?} the prompt alone goes on {alone:?}, together they go on {together:?}; use a template that writes both \
         alike, or set `allow_diverging_prompts` to let the completion begin where they part"
    )]
    PromptDiverges {
        /// File and line.
        place: RowOrigin,
        /// The completion's column.
        column: &'static str,
        /// The end of what both share.
        shared: String,
        /// How the prompt alone goes on.
        alone: String,
        /// How prompt and completion go on.
        together: String,
    },
    /// `continue_final_message` cannot be honoured.
    #[error("{place}: cannot continue the final message: {reason}")]
    Continue {
        /// File and line.
        place: RowOrigin,
        /// Why.
        reason: &'static str,
    },
    /// A key of `chat_template_kwargs` that belongs to the caller.
    #[error(
        "{place}: `chat_template_kwargs` sets `{key}`, which preparation decides itself; remove it from the row"
    )]
    TemplateArgument {
        /// File and line.
        place: RowOrigin,
        /// The key.
        key: String,
    },
    /// `assistant_only_loss` on text rows.
    #[error("{place}: `assistant_only_loss` needs conversations, got {got}; turn it off or give `messages`")]
    AssistantNeedsChat {
        /// File and line.
        place: RowOrigin,
        /// The row's type.
        got: RowKind,
    },
    /// `assistant_only_loss` with a template that does not mark the assistant's text, where it cannot be told either.
    #[error(
        "{place}: `assistant_only_loss` needs to know the assistant's text, the chat template `{name}` has no \
         {{% generation %}} markers, and from its renderings it does not follow: {reason}; put \
         {{% generation %}}...{{% endgeneration %}} around the assistant's text and its end-of-turn token, or turn it off"
    )]
    NoAssistantTurns {
        /// Where the row is.
        place: RowOrigin,
        /// File or name of the template.
        name: String,
        /// What does not fit.
        reason: String,
    },
    /// A conversation without a single assistant token.
    #[error(
        "{place}: `assistant_only_loss` is on but no token of this row is the assistant's; add an assistant message or drop the row"
    )]
    NoAssistantToken {
        /// File and line.
        place: RowOrigin,
    },
    /// Nothing left to train on.
    #[error(
        "nothing left to train on: all {rows} rows were dropped because no trained token lies within `max_length` {max_length}; \
         raise `max_length` or shorten the prompts"
    )]
    AllDropped {
        /// Rows read.
        rows: usize,
        /// The limit.
        max_length: usize,
    },
    /// Every pair is too long.
    #[error(
        "nothing left to train on: all {rows} pairs were dropped because `chosen` or `rejected` is longer than `max_length` \
         {max_length} (longest: {longest}); raise `max_length`"
    )]
    AllTooLong {
        /// Rows read.
        rows: usize,
        /// The limit.
        max_length: usize,
        /// Tokens of the longest text.
        longest: usize,
    },
    /// Rows exist but none has a token that is a target.
    #[error(
        "nothing to train on: none of the {rows} rows has a trained token; check `completion_only_loss` and the mask columns"
    )]
    NothingTrained {
        /// Rows read.
        rows: usize,
    },
    /// Options that contradict each other or the data.
    #[error("{what}; {mend}")]
    Options {
        /// The contradiction.
        what: &'static str,
        /// The mend.
        mend: &'static str,
    },
    /// An option out of range, or two that contradict each other.
    #[error(transparent)]
    Option(#[from] OptionFault),
    /// A named option value that does not exist.
    #[error("`{option}`: unknown value `{got}`, expected one of {}", expected.join(", "))]
    UnknownValue {
        /// The option.
        option: &'static str,
        /// The value given.
        got: String,
        /// The values that exist.
        expected: &'static [&'static str],
    },
    /// A number out of its range.
    #[error("`{option}` is {got}, expected {expected}")]
    Range {
        /// The option.
        option: &'static str,
        /// The value given.
        got: f64,
        /// The range.
        expected: &'static str,
    },
    /// A cursor that does not belong to this data set.
    #[error(
        "the saved data position is row {index} of an epoch, this data set has {rows} rows per epoch; resume with the same data"
    )]
    Cursor {
        /// The saved position.
        index: usize,
        /// Rows of an epoch.
        rows: usize,
    },
}

impl From<UnknownWord> for DataError {
    fn from(UnknownWord { option, got, words }: UnknownWord) -> Self {
        Self::UnknownValue { option, got, expected: words }
    }
}

impl Coded for DataError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Missing { .. }
            | Self::EmptyFolder { .. }
            | Self::EmptyGlob { .. }
            | Self::BadGlob { .. }
            | Self::TooManyFiles { .. }
            | Self::Empty { .. } => ErrorCode::NoRows,
            Self::Format { .. }
            | Self::HugeRow { .. }
            | Self::ManyOfLittle { .. }
            | Self::NotUtf8 { .. }
            | Self::Columns { .. }
            | Self::Csv { .. }
            | Self::Damaged { .. }
            | Self::Json { .. }
            | Self::NotAnObject { .. } => ErrorCode::BadRows,
            Self::NoConfig { .. }
            | Self::NeedsConfig { .. }
            | Self::NoSplit { .. }
            | Self::BadSlice { .. }
            | Self::NoDataFile { .. } => ErrorCode::NoSplit,
            Self::NoColumn { .. }
            | Self::NotText { .. }
            | Self::UnknownColumns { .. }
            | Self::NoPrompt { .. }
            | Self::MissingColumn { .. }
            | Self::ColumnType { .. }
            | Self::MixedText { .. }
            | Self::ColumnLength { .. }
            | Self::TemplateArgument { .. } => ErrorCode::WrongColumns,
            Self::MixedRows { .. } | Self::WrongKind { .. } | Self::AssistantNeedsChat { .. } => {
                ErrorCode::WrongRows
            }
            Self::TokenRange { .. } | Self::TokenBeyond { .. } | Self::UnknownToken { .. } => {
                ErrorCode::ForeignTokens
            }
            Self::NoTokenizer { .. }
            | Self::BadTokenizer { .. }
            | Self::BadFile { .. }
            | Self::NoEos
            | Self::Tokenise { .. }
            | Self::Decode { .. } => ErrorCode::BadTokenizer,
            Self::NoTemplate { .. }
            | Self::TemplateSyntax { .. }
            | Self::NoDefaultTemplate { .. }
            | Self::TemplateRaised { .. }
            | Self::TemplateBound { .. }
            | Self::TemplateFailed { .. }
            | Self::Continue { .. }
            | Self::NoAssistantTurns { .. } => ErrorCode::BadTemplate,
            Self::EmptyConversation { .. } | Self::EmptyPrompt { .. } | Self::EmptyCompletion { .. } => {
                ErrorCode::EmptyText
            }
            Self::NoSharedPrompt { .. } | Self::PromptDiverges { .. } => ErrorCode::DivergingPrompt,
            Self::NoAssistantToken { .. }
            | Self::AllDropped { .. }
            | Self::AllTooLong { .. }
            | Self::NothingTrained { .. } => ErrorCode::NothingToLearn,
            Self::Options { .. } => ErrorCode::Conflict,
            Self::UnknownValue { .. } | Self::Range { .. } => ErrorCode::BadValue,
            Self::Cursor { .. } => ErrorCode::CannotResume,
            Self::Io { source, .. } => source.code(),
            Self::Option(error) => error.code(),
        }
    }
}
