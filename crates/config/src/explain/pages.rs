//! Cause and mend of each class of errors.

use burnish_core::ErrorCode;

use super::Page;

/// Classes by what they are about, in the order of the page.
pub(super) const SECTIONS: &[(&str, &[ErrorCode])] = {
    use ErrorCode::*;
    &[
        (
            "The command line",
            &[
                UnknownCommand,
                UnknownOption,
                BadValue,
                MissingOption,
                Conflict,
                UnsupportedOption,
                BadConfig,
                BadEnvironment,
                NotBuilt,
            ],
        ),
        ("Files", &[NotFound, CannotRead, CannotWrite, DiskFull, OutputExists, OutputInUse, DamagedFile]),
        (
            "Models",
            &[
                NotAModel,
                BadModelConfig,
                UnsupportedModel,
                WeightsMismatch,
                QuantizedModel,
                WrongHead,
                TooLong,
                BadTokenizer,
                BadTemplate,
                CannotExport,
                ExportDiffers,
            ],
        ),
        ("Adapters", &[NotAnAdapter, UnsupportedAdapter, NoTarget, AdapterMismatch, CannotMerge]),
        (
            "Rows",
            &[
                NoRows,
                NoSplit,
                BadRows,
                WrongColumns,
                WrongRows,
                EmptyText,
                DivergingPrompt,
                NothingToLearn,
                ForeignTokens,
            ],
        ),
        (
            "Runs",
            &[
                NothingTrains,
                NotFinite,
                OutOfMemory,
                BadReward,
                RewardCommand,
                RolloutServer,
                NoCheckpoint,
                DamagedCheckpoint,
                CannotResume,
                CannotSave,
            ],
        ),
        ("Devices", &[NoDevice, DeviceFailed]),
        (
            "Ranks",
            &[
                BadLaunch,
                NoTransport,
                RanksNotMet,
                RankSecret,
                RanksDiffer,
                RankFailed,
                RankSilent,
                RankNetwork,
                CannotDivide,
            ],
        ),
        ("The hub", &[NotOnHub, HubToken, HubUnreachable, HubAnswer]),
        ("Servers, and faults of burnish", &[CannotListen, Internal]),
    ]
};

const fn page(title: &'static str, cause: &'static str, mend: &'static str) -> Page {
    Page { title, cause, mend }
}

/// What is said of a class.
#[expect(clippy::too_many_lines, reason = "a table")]
pub(super) const fn of(code: ErrorCode) -> Page {
    match code {
        ErrorCode::UnknownCommand => page(
            "There is no such command",
            "The first word after `burnish` is no command, or the word after `plan`, `data` or `help` is none that these \
             take.",
            "`burnish --help` lists the commands. Options come after the command: `burnish sft --learning_rate 1e-4`.",
        ),
        ErrorCode::UnknownOption => page(
            "The command has no such option",
            "A flag or a key of the `--config` file is misspelled, belongs to another command or trainer, or stands \
             without `--`. Several wrong options are listed together.",
            "Take the name that the message proposes. `burnish COMMAND --help` lists the command's groups, \
             `burnish COMMAND --help all` every option, and docs/options.md says which command has which.",
        ),
        ErrorCode::BadValue => page(
            "The value is not one that the option takes",
            "It is of another type (text for a number), out of range, or none of the option's words; or the flag has no \
             value at all.",
            "Give what the message says was expected; `burnish COMMAND --help OPTION` explains one option. In YAML write \
             `1.0e-4` rather than `1e-4` where another program reads the file too, and quote text that looks like a number.",
        ),
        ErrorCode::MissingOption => page(
            "The command needs an option that was not given",
            "Some options have no default: what to read, and what to write.",
            "Add the option, on the command line or in the file of `--config`.",
        ),
        ErrorCode::Conflict => page(
            "Two options do not go together",
            "Each is valid, but one excludes the other, or asks for something that the other's value does not have. \
             Nothing was computed.",
            "The message names both and says which to change.",
        ),
        ErrorCode::UnsupportedOption => page(
            "burnish knows the option and does not do what it asks for",
            "It is an option of TRL, Transformers, PEFT, Accelerate or DeepSpeed with a value that would change the run. \
             Keys that change no result are noted and the run goes on; those that would are refused rather than ignored.",
            "Take the option out, or do what the message says instead. docs/options.md lists every refused key with the \
             values that are accepted.",
        ),
        ErrorCode::BadConfig => page(
            "The configuration file cannot be read as one",
            "It is missing, is neither YAML, JSON nor TOML by its name, is not well formed, writes a key twice, or does \
             not begin with a mapping from options to values.",
            "Mend the line that the message names. One option a line: `learning_rate: 1.0e-4` in YAML, \
             `learning_rate = 1e-4` in TOML.",
        ),
        ErrorCode::BadEnvironment => page(
            "A variable or a limit of the process does not allow the run",
            "A variable (`RAYON_NUM_THREADS`, `RUST_MIN_STACK`) has a value that cannot be used, or the system allows too \
             few threads or too small a stack.",
            "Unset the variable, ask for fewer threads with `--threads`, or raise the limit (`ulimit -u`, `ulimit -s`, \
             `ulimit -v`).",
        ),
        ErrorCode::NotBuilt => page(
            "This build of burnish leaves that part out",
            "Devices, the hub, the server and TLS are features that a build can leave out.",
            "Build with the feature that the message names, such as `cargo install burnish-cli --features cuda`, or use \
             what the build has, such as `--device cpu`.",
        ),
        ErrorCode::NotFound => page(
            "There is nothing at a path",
            "The path is misspelled, or relative to another folder than the one that the command runs in.",
            "`ls` the path. A name without a folder, such as `owner/name`, is looked for here first and on the hub then.",
        ),
        ErrorCode::CannotRead => page(
            "A file or stream cannot be read",
            "Permissions, a folder where a file is expected, or an error of the disk or network file system.",
            "`ls -l` the file; the message has the system's words.",
        ),
        ErrorCode::CannotWrite => page(
            "A file or stream cannot be written",
            "Permissions, a file system that is mounted read-only, a file where a folder is needed, or a reader that went \
             away. What was there before is as it was.",
            "Change the permissions, or name another place (`--output_dir`, `--output_file`).",
        ),
        ErrorCode::DiskFull => page(
            "There is no room on the disk",
            "The disk or a quota is full, or the file would be longer than `ulimit -f` allows. Folders are written under \
             another name and moved when they are whole, so nothing was replaced.",
            "Free room, or write elsewhere. Checkpoints take most: `--save_total_limit 2` keeps two, `--save_only_model` \
             leaves out the optimizer's state, and `burnish plan` says how large one is.",
        ),
        ErrorCode::OutputExists => page(
            "The output is there already",
            "The folder holds other files, or is also an input of the command. burnish replaces nothing that it was not \
             told to.",
            "Name another output. `--overwrite_output_dir` (or `--overwrite_output_file`) writes over what is there; to go \
             on with a run, `--resume_from_checkpoint`.",
        ),
        ErrorCode::OutputInUse => page(
            "Another process writes the same output",
            "A run holds a lock on its output folder until it ends; a lock whose process is gone does not count.",
            "Wait for the other run, stop it, or give this one its own `--output_dir`.",
        ),
        ErrorCode::DamagedFile => page(
            "A file of weights is damaged, or is something else",
            "It is cut off, its header does not describe it, an index names files that are not there, or it is a page of \
             HTML or a Git LFS pointer (a text of three lines) instead of weights.",
            "Copy or download it again; with Git, `git lfs pull`. `burnish inspect FILE` says what a file is.",
        ),
        ErrorCode::NotAModel => page(
            "The folder is no model that can be read",
            "A model folder holds `config.json`, `model.safetensors` (or several with an index) and the tokenizer. Weights \
             in PyTorch's pickles (`.bin`, `.pt`) are not read, as reading them can run code.",
            "Name the folder that holds `config.json`. Convert other weights with Transformers' `save_pretrained`.",
        ),
        ErrorCode::BadModelConfig => page(
            "A settings file of the model cannot be used",
            "`config.json`, `generation_config.json` or another is no JSON, or a key is missing or of the wrong kind.",
            "Compare the key with the original model's file, and copy it anew if it was changed.",
        ),
        ErrorCode::UnsupportedModel => page(
            "The model's family, or a variety of it, is not computed",
            "burnish computes the families that the message lists. A key that changes the arithmetic and is not known is \
             refused: without it the model would be another one.",
            "Take a model of a family that is listed. README.md has the table.",
        ),
        ErrorCode::WeightsMismatch => page(
            "The weights are not those of config.json",
            "Tensors are missing, of another shape, or belong to no parameter: the weights or the configuration are of \
             another model, or an adapter's folder was named as a model.",
            "Copy `config.json` and the weights from one place. An adapter is named with `--adapter_name_or_path`, beside \
             its base.",
        ),
        ErrorCode::QuantizedModel => page(
            "The folder is quantised already, and that cannot be used here",
            "Weights in four or eight bits (GPTQ, AWQ, bitsandbytes, MXFP4) are read as frozen bases of adapters and for \
             inference. Training them, quantising them again, and parts that do not fit their matrix are refused.",
            "Train an adapter (`--use_peft`), or begin with the model's unquantised folder.",
        ),
        ErrorCode::WrongHead => page(
            "The model gives a score where tokens are wanted, or tokens where a score is",
            "Language models (`*ForCausalLM`) end in a head over the vocabulary, reward models \
             (`*ForSequenceClassification`) in a score.",
            "Take a model of the other kind; `burnish reward` makes one that scores of a language model.",
        ),
        ErrorCode::TooLong => page(
            "A text is longer than the model can place",
            "It has more tokens than `max_position_embeddings` in `config.json`.",
            "Shorten it: `--max_length` for rows, fewer `--max_new_tokens` or a shorter prompt for answers.",
        ),
        ErrorCode::BadTokenizer => page(
            "The tokenizer is missing or cannot be used",
            "burnish reads `tokenizer.json`, or makes it as Transformers does of `vocab.json` with `merges.txt`, of `tekken.json`, of `qwen.tiktoken`, or of SentencePiece's BPE in `tokenizer.model`; and it needs the token that ends a text.",
            "Save the tokenizer with Transformers' `save_pretrained` beside the model; name the ending token with \
             `--eos_token`. `burnish inspect FOLDER` shows what was found.",
        ),
        ErrorCode::BadTemplate => page(
            "The chat template is missing, fails or refuses the conversation",
            "Conversations become text by the model's template (`chat_template.jinja`, or a key of \
             `tokenizer_config.json`). Base models have none; some templates refuse system messages or two turns of one \
             role; `assistant_only_loss` needs `{% generation %}` markers where the assistant's text does not follow \
             from what is rendered.",
            "`--chat_template_path` names a file, or a model whose template is taken. `burnish data` shows each row as the \
             model sees it.",
        ),
        ErrorCode::CannotExport => page(
            "The other format has no form of this model or adapter",
            "GGUF is read by llama.cpp, which has its own list of families and computes some otherwise. A file that would \
             load there and be another model is not written.",
            "docs/export.md lists what is written. An adapter that has no form of its own is folded in \
             (without `--adapter_only`); values that float16 cannot hold go into `--outtype bf16`.",
        ),
        ErrorCode::ExportDiffers => page(
            "The exported file is not its source",
            "Every export is read back and compared with its source; this one differs by more than its type rounds, and \
             was not kept.",
            "The disk or the memory may be damaged: try again on another disk. If it happens again it is a fault of \
             burnish: report it with the model's `config.json`.",
        ),
        ErrorCode::NotAnAdapter => page(
            "The folder is no adapter",
            "An adapter's folder holds `adapter_config.json` and `adapter_model.safetensors`, as PEFT and burnish save it.",
            "Name that folder: a run's `--output_dir`, or a `checkpoint-N` in it. A whole model is named with \
             `--model_name_or_path`.",
        ),
        ErrorCode::UnsupportedAdapter => page(
            "The adapter has a method or a key that is not computed",
            "`adapter_config.json` names a method of PEFT's that burnish does not have, or a key that changes the \
             arithmetic. Without it the adapter would be another one.",
            "Merge it into its base with PEFT, and use the merged folder.",
        ),
        ErrorCode::NoTarget => page(
            "No module, or not one module clearly, is to be adapted",
            "`--lora_target_modules` or a pattern of `rank_pattern` matches no layer, everything that matches is excluded, \
             or the model's family has no default.",
            "`--lora_target_modules all-linear` takes every linear layer but the head. `burnish inspect MODEL --tensors` \
             lists the names; the message has those most alike.",
        ),
        ErrorCode::AdapterMismatch => page(
            "The adapter does not fit this model",
            "Its tensors are of other layers or shapes: it was trained on another base, or its configuration was changed.",
            "`base_model_name_or_path` in `adapter_config.json` names the base that it belongs to.",
        ),
        ErrorCode::CannotMerge => page(
            "The adapter cannot become part of its base",
            "It adds tokens before the text, or a bias where the base has none; or the base lacks a weight that it changes.",
            "Keep it beside its base: `--adapter_name_or_path` of `generate`, `chat`, `serve` and `eval`.",
        ),
        ErrorCode::NoRows => page(
            "No rows were found",
            "The path is missing, a folder without files of rows, a glob that matches nothing, or a file without a row.",
            "`--dataset_name` takes a file (.jsonl, .json, .csv, .tsv, .txt, .parquet, .arrow), a folder of them, a glob in \
             quotes, or a data set of the hub.",
        ),
        ErrorCode::NoSplit => page(
            "The data set has no such configuration, split or file",
            "Names of splits are in the folder's `README.md` or in the files' names (`train-00000-of-00001.parquet`); a \
             slice is written `train[:1000]` or `train[10%:20%]`.",
            "Set `--dataset_config`, `--dataset_train_split` or `--dataset_test_split` to one that the message lists.",
        ),
        ErrorCode::BadRows => page(
            "A file of rows cannot be read",
            "A line is no JSON object, a CSV line has another number of columns, the text is not UTF-8, or the file is cut \
             off. The message has the file and the line.",
            "Mend that line, or write the file again. JSON lines: one whole object a line, such as \
             `{\"prompt\": \"...\", \"completion\": \"...\"}`.",
        ),
        ErrorCode::WrongColumns => page(
            "Columns are missing, or hold something else",
            "A row is known by its columns: `text`; `messages`; `prompt` and `completion`; `prompt`, `chosen` and \
             `rejected`; `prompt`; or `input_ids`.",
            "Rename the column, or say its name: `--dataset_text_field`, or `columns` of a data set in a config. \
             `burnish data` shows what was understood.",
        ),
        ErrorCode::WrongRows => page(
            "The rows are of another kind than the trainer takes",
            "SFT takes texts, conversations and prompts with completions; DPO, CPO, ORPO and Reward pairs; KTO answers \
             with a label; GRPO and RLOO prompts. One data set holds one kind.",
            "Use the trainer for these rows, or split the file. docs/guide.md and docs/dpo.md show the rows.",
        ),
        ErrorCode::EmptyText => page(
            "A row or prompt has nothing in it",
            "An empty prompt gives nothing to continue, an empty answer nothing to score, an empty conversation nothing to \
             render.",
            "Fill it in or drop the row; `burnish data` counts and shows such rows.",
        ),
        ErrorCode::DivergingPrompt => page(
            "The prompt is not the beginning of prompt and completion",
            "Chat templates may write a conversation's end otherwise than its middle (reasoning that is left out of \
             earlier turns, for instance), so the tokens of the prompt alone are not those before the answer. Preference \
             pairs without a `prompt` have to begin alike.",
            "Use a template that writes both alike, or `--allow_diverging_prompts` to begin the answer where they part.",
        ),
        ErrorCode::NothingToLearn => page(
            "No token is left to learn from",
            "Every token is masked (`completion_only_loss`, `assistant_only_loss`, a mask column), or was cut off by \
             `max_length`, or the rows are empty.",
            "`burnish data` shows the mask in colour. Raise `--max_length`, or turn the mask off that takes everything.",
        ),
        ErrorCode::ForeignTokens => page(
            "Token ids are of another tokenizer",
            "`input_ids` or the tokenizer's own tokens lie beyond the model's vocabulary, a special token is not in it, or \
             a reference model reads other tokens than the policy.",
            "Use the tokenizer that belongs to the model, and tokenise the rows anew.",
        ),
        ErrorCode::NothingTrains => page(
            "No parameter trains",
            "The adapter has no trainable parameter, everything is frozen, or Muon has no matrix to update.",
            "Check `--lora_target_modules` and `--lora_modules_to_save`, or train all weights without `--use_peft`. \
             `burnish plan` counts what trains.",
        ),
        ErrorCode::NotFinite => page(
            "A loss, a gradient or a weight is not a number",
            "The run diverged (most often a learning rate that is too high), a precision is too narrow, or the weights or \
             rows that were read are damaged. The update was not made, and nothing of it was saved.",
            "Lower `--learning_rate`, set `--max_grad_norm 1`, use bf16 or float32 rather than fp16, and look at the \
             step's rows with `burnish data`. `--resume_from_checkpoint` goes on from the last checkpoint.",
        ),
        ErrorCode::OutOfMemory => page(
            "The memory is full",
            "Weights, gradients, the optimizer's state and activations do not fit together. The message has the plan's \
             table, largest first.",
            "What the message lists, the most helpful first: a smaller `--per_device_train_batch_size` with more \
             `--gradient_accumulation_steps`, `--gradient_checkpointing`, a shorter `--max_length`, an adapter \
             (`--use_peft`), a base in four bits (`--load_in_4bit`), more ranks with `--zero_stage 3`. `burnish plan sft \
             ...` says before a run what it takes.",
        ),
        ErrorCode::BadReward => page(
            "Reward functions are missing, or do not fit their rows",
            "None is given, a name is unknown, weights are not one for each, a column that a function reads is missing, or \
             none of them could score anything.",
            "`--reward_funcs` takes built-in functions, `--reward_model_name_or_path` a model, `--reward_command` a \
             program of your own. The message names the column that is missing; docs/grpo.md says what functions read.",
        ),
        ErrorCode::RewardCommand => page(
            "The program that gives rewards failed",
            "It did not start, ended early, answered too late, too often, or with something else than a number.",
            "Try it by hand: it reads one JSON object a line and writes one number (or `null`) a line, flushes each, and \
             goes on until its input ends. Anything else it writes belongs on standard error. \
             `--reward_command_timeout` gives it longer.",
        ),
        ErrorCode::RolloutServer => page(
            "The server that samples completions does not do its part",
            "It cannot be reached at `rollout_url`, refuses, or answers with tokens or probabilities of another model.",
            "Start it first (`burnish serve MODEL`), check the address with `curl URL/health`, and have it run the model \
             that trains.",
        ),
        ErrorCode::NoCheckpoint => page(
            "There is no checkpoint to go on from, or more than one run's",
            "The output folder has no whole `checkpoint-N`, or those of several runs.",
            "Leave out `--resume_from_checkpoint` to begin anew, or name the checkpoint's folder.",
        ),
        ErrorCode::DamagedCheckpoint => page(
            "The checkpoint is not what was written",
            "A file of it is missing, was changed or cut off (its checksum differs), or another program or a newer burnish \
             wrote it.",
            "Take the checkpoint that the message names. Of another program's checkpoint the weights can be used: \
             `--model_name_or_path` or `--adapter_name_or_path`.",
        ),
        ErrorCode::CannotResume => page(
            "The checkpoint is of another run",
            "The rows, the model, the optimizer or an option that decides the course of the run is another one, so that \
             going on would be neither run.",
            "Resume with the data and options that the checkpoint's run had (`burnish inspect CHECKPOINT` lists them), or \
             begin anew in another `--output_dir` from its weights.",
        ),
        ErrorCode::CannotSave => page(
            "A checkpoint could not be saved",
            "Saving in the background failed, or no thread could be started for it. Earlier checkpoints are whole.",
            "See what the message says of the cause; `ulimit -u` is the limit on threads.",
        ),
        ErrorCode::NoDevice => page(
            "The device is not there, or not ready",
            "No driver, too old a driver, no such number, or without the compiler and headers that kernels need.",
            "`burnish doctor` says what is missing. `--device cpu` runs without a GPU.",
        ),
        ErrorCode::DeviceFailed => page(
            "The device or its driver failed",
            "An operation ended with an error of the driver: a fault of the hardware, of the driver, or of a kernel. \
             Nothing more can be computed on the device by that process.",
            "Look at `nvidia-smi -q` and `dmesg`, then resume from the last checkpoint. If `--device cpu` does the same \
             step without an error, report it.",
        ),
        ErrorCode::BadLaunch => page(
            "The launcher and the options do not agree on the ranks",
            "Variables of torchrun, MPI or Slurm are missing or contradict each other or `--nproc`, `--tp_size` does not \
             divide the ranks, or a transport is asked for something that it does not do.",
            "On one machine, `--nproc N` is enough. On several, start the same command by `torchrun` or `mpirun` without \
             `--nproc`. docs/many-ranks.md has a command for each.",
        ),
        ErrorCode::NoTransport => page(
            "A library that ranks communicate through is not there",
            "`--transport mpi` loads Open MPI and `--transport nccl` loads NCCL and CUDA when the run starts.",
            "Install what the message names, or use `--transport local` (threads of one process) or `tcp`.",
        ),
        ErrorCode::RanksNotMet => page(
            "The ranks did not find each other",
            "Rank 0 listens at `MASTER_ADDR`:`MASTER_PORT`; another program has the port, a firewall is between, the \
             address is another machine's, or some ranks were never started.",
            "Look at what the missing ranks say. Try the address from their machine (`nc -vz ADDR PORT`), and take another \
             port if it is in use.",
        ),
        ErrorCode::RankSecret => page(
            "What ranks know each other by is missing or not the same",
            "Over TCP nothing is read from a process that has not proven to know the job's secret.",
            "Give all ranks the same text: `export BURNISH_DDP_SECRET=$(openssl rand -hex 32)` before they are started, or \
             `--ddp_secret_file` with a file that only you can read.",
        ),
        ErrorCode::RanksDiffer => page(
            "The ranks do not do the same",
            "They were started with other options, files or versions, or their parameters or calls have come apart. Ranks \
             compare what they have before the first step, so that no model is trained by two runs at once.",
            "Start all of them with the same command and files. If the difference came during a run, report it with the \
             options.",
        ),
        ErrorCode::RankFailed => page(
            "Another rank ended or failed",
            "This rank only waited for it. The cause is in the other rank's own error.",
            "Look for the first error among the ranks' outputs, and `burnish explain` that one. A rank that was killed \
             without a word most often ran out of memory (`dmesg | grep -i oom`).",
        ),
        ErrorCode::RankSilent => page(
            "Another rank is late, or stopped",
            "A rank did not come to a collective within the deadline: it computes longer, hangs, was stopped, or its \
             machine or network is gone.",
            "See what it was doing. `--ddp_timeout SECONDS` raises the deadline.",
        ),
        ErrorCode::RankNetwork => page(
            "Messages between ranks do not arrive, or not whole",
            "A connection broke, the communication library failed, or what arrived has another checksum than what was sent.",
            "Check the network and the memory of both machines; `NCCL_DEBUG=WARN` has NCCL say more. The run goes on from \
             its last checkpoint.",
        ),
        ErrorCode::CannotDivide => page(
            "The model cannot be shared by so many ranks",
            "Under tensor parallelism each rank needs at least one attention head and whole parts of packed matrices.",
            "Use the `--tp_size` that the message allows, or shard with `--zero_stage 3` instead.",
        ),
        ErrorCode::NotOnHub => page(
            "The hub does not have that repository, revision or file",
            "The name is misspelled, private, or is no repository's; the revision is no branch, tag or commit; or the \
             repository has no .safetensors weights.",
            "Look it up on https://huggingface.co. For a private repository set `HF_TOKEN`. A local folder needs a path \
             that is there, such as `./model`.",
        ),
        ErrorCode::HubToken => page(
            "The hub wants a token, or another one",
            "The repository is gated or private, the token is not valid, or it may not write.",
            "Accept the conditions on the repository's page, and set `HF_TOKEN` to a token from \
             https://huggingface.co/settings/tokens: one that may read, and to upload one that may write.",
        ),
        ErrorCode::HubUnreachable => page(
            "The hub does not answer, and the cache does not have everything",
            "No network, a proxy, an outage, or too many requests; or `HF_HUB_OFFLINE` is set and files are missing.",
            "Try again later, or run once with the hub in reach: what is in the cache (`HF_HOME`) is used without it. \
             `HF_ENDPOINT` names a mirror.",
        ),
        ErrorCode::HubAnswer => page(
            "What came from the hub is not what it said",
            "A download was cut off or its digest differs, or a proxy or mirror answers something else. What was whole is \
             kept, what was not is deleted.",
            "Run again. If it stays so, check `HF_ENDPOINT` and the proxy.",
        ),
        ErrorCode::CannotListen => page(
            "The server cannot have that address",
            "Another program has the port, or the address is not one of this machine's.",
            "`--port 0` takes a free port and says which; `--host 127.0.0.1` is this machine alone.",
        ),
        ErrorCode::Internal => page(
            "Arguments inside the program do not fit together",
            "Shapes, names or an order of calls that a program has to keep were not kept. From the program `burnish` this \
             is a fault of burnish; from a program that uses its crates, of that program.",
            "Report it with the command, the message and the model's `config.json`.",
        ),
    }
}
