//! Files of a folder brought into a repository: large ones by Git LFS' batches, all in one commit.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::client::Sent;
use crate::digest::sha256;
use crate::error::HubError;
use crate::hub::{Hub, Progress};
use crate::repo::Repo;
use crate::url::quoted;

/// The branch that is meant when none is named.
const MAIN: &str = "main";
/// Files of one question, as `huggingface_hub` asks.
const BATCH: usize = 256;
/// Bytes of a file's beginning, by which the hub decides how it is kept.
const SAMPLE: u64 = 512;
/// Parts of a large file.
const MOST_PARTS: usize = 10_000;
/// What Git LFS calls its JSON.
const LFS: &str = "application/vnd.git-lfs+json";
const JSON: &str = "application/json";

/// What an upload has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uploaded {
    /// The commit.
    pub commit: String,
    /// The page of the repository.
    pub page: String,
    /// Bytes of large files that the hub did not have yet.
    pub sent: u64,
}

/// A file to bring.
struct Local {
    /// In the repository.
    name: String,
    path: PathBuf,
    size: u64,
    digest: String,
    large: bool,
}

#[derive(Deserialize)]
struct Account {
    name: String,
}

#[derive(Deserialize)]
struct Decided {
    files: Vec<Decision>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Decision {
    path: String,
    upload_mode: String,
    #[serde(default)]
    should_ignore: bool,
}

#[derive(Deserialize)]
struct Batch {
    objects: Vec<Object>,
}

#[derive(Deserialize)]
struct Object {
    oid: String,
    #[serde(default)]
    actions: Option<Actions>,
    #[serde(default)]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Actions {
    upload: Option<Action>,
    verify: Option<Action>,
}

#[derive(Deserialize)]
struct Action {
    href: String,
    #[serde(default)]
    header: serde_json::Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Committed {
    commit_oid: String,
}

impl<F: FnMut(Progress<'_>)> Hub<F> {
    /// A model's repository of this name, made where there is none; without an owner the token's account owns it.
    ///
    /// # Errors
    /// Without a token, when the hub does not take it or cannot be reached.
    pub fn create(&self, name: &str, private: Option<bool>) -> Result<Repo, HubError> {
        let endpoint = &self.settings().endpoint;
        self.needs_token()?;
        let named = Repo::model(name)?;
        let (owner, bare) = match name.split_once('/') {
            Some((owner, bare)) => (owner.to_owned(), bare),
            None => {
                let url = format!("{endpoint}/api/whoami-v2");
                let (account, _): (Account, _) = self.client.json(&named, MAIN, &url)?;
                (account.name, name)
            }
        };
        let mut body = json!({"name": bare, "organization": owner});
        if let Some(private) = private {
            body["private"] = private.into();
        }
        let repo = Repo::model(&format!("{owner}/{bare}"))?;
        let url = format!("{endpoint}/api/repos/create");
        // It is there already.
        self.client.post(&repo, &url, (JSON, body.to_string().as_bytes()), &[409])?;
        Ok(repo)
    }

    /// Brings files of `folder`, named relative to it, into a branch of a repository, in one commit. What the hub has
    /// already is not sent again.
    ///
    /// # Errors
    /// Without a token, when a file cannot be read, when the hub refuses or cannot be reached.
    pub fn upload(
        &self,
        repo: &Repo,
        branch: Option<&str>,
        folder: &Path,
        names: &[String],
        message: &str,
    ) -> Result<Uploaded, HubError> {
        self.upload_into(repo, branch, "", folder, names, message)
    }

    /// As [`Self::upload`], into a folder of the repository: `last-checkpoint/`.
    ///
    /// # Errors
    /// As [`Self::upload`].
    pub fn upload_into(
        &self,
        repo: &Repo,
        branch: Option<&str>,
        into: &str,
        folder: &Path,
        names: &[String],
        message: &str,
    ) -> Result<Uploaded, HubError> {
        self.needs_token()?;
        let endpoint = self.settings().endpoint.clone();
        let branch = branch.unwrap_or(MAIN);
        let api = format!("{endpoint}{}", repo.api_path());
        if branch != MAIN {
            let url = format!("{api}/branch/{}", quoted(branch, false));
            self.client.post(repo, &url, (JSON, b"{}"), &[409])?;
        }
        let mut files = Vec::new();
        for names in names.chunks(BATCH) {
            files.extend(self.decide(repo, &api, branch, (folder, into), names)?);
        }
        let total: u64 = files.iter().filter(|file| file.large).map(|file| file.size).sum();
        let (mut done, mut sent) = (0, 0);
        let large: Vec<&Local> = files.iter().filter(|file| file.large).collect();
        for batch in large.chunks(BATCH) {
            sent += self.bring_large(repo, branch, batch, (&mut done, total))?;
        }
        let url = format!("{api}/commit/{}", quoted(branch, false));
        let body = commit(&files, message)?;
        let answer = self.client.post(repo, &url, ("application/x-ndjson", &body), &[])?;
        let committed: Committed = parsed(&url, &answer)?;
        let page = format!("{endpoint}{}", repo.path());
        Ok(Uploaded { commit: committed.commit_oid, page, sent })
    }

    fn needs_token(&self) -> Result<(), HubError> {
        if self.settings().token.is_some() { Ok(()) } else { Err(HubError::NoToken) }
    }

    /// Asks how files are to be kept; those that the repository ignores are left out.
    fn decide(
        &self,
        repo: &Repo,
        api: &str,
        branch: &str,
        (folder, into): (&Path, &str),
        names: &[String],
    ) -> Result<Vec<Local>, HubError> {
        let mut asked = Vec::new();
        for name in names {
            let path = folder.join(name);
            let mut file = File::open(&path).map_err(HubError::io(&path))?;
            let size = file.metadata().map_err(HubError::io(&path))?.len();
            let mut sample = Vec::new();
            file.by_ref().take(SAMPLE).read_to_end(&mut sample).map_err(HubError::io(&path))?;
            asked.push(
                json!({"path": format!("{into}{name}"), "sample": STANDARD.encode(&sample), "size": size}),
            );
        }
        let url = format!("{api}/preupload/{}", quoted(branch, false));
        let body = json!({"files": asked}).to_string();
        let decided: Decided = parsed(&url, &self.client.post(repo, &url, (JSON, body.as_bytes()), &[])?)?;
        let mut files = Vec::new();
        for (name, asked) in names.iter().zip(&asked) {
            let (path, name) = (folder.join(name), format!("{into}{name}"));
            let said = decided.files.iter().find(|decision| decision.path == name);
            let Some(said) = said else {
                let reason = format!("it says nothing of {name:?}");
                return Err(HubError::Answer { url, reason });
            };
            if said.should_ignore {
                continue;
            }
            let large = said.upload_mode == "lfs";
            let digest = if large { sha256(&path)? } else { String::new() };
            let size = asked["size"].as_u64().unwrap_or(0);
            files.push(Local { name, path, size, digest, large });
        }
        Ok(files)
    }

    /// Sends what the hub does not have of these files; how many bytes that were.
    fn bring_large(
        &self,
        repo: &Repo,
        branch: &str,
        files: &[&Local],
        (done, total): (&mut u64, u64),
    ) -> Result<u64, HubError> {
        let url = format!("{}{}.git/info/lfs/objects/batch", self.settings().endpoint, repo.path());
        let objects: Vec<Value> =
            files.iter().map(|file| json!({"oid": file.digest, "size": file.size})).collect();
        let body = json!({
            "operation": "upload", "transfers": ["basic", "multipart"], "objects": objects, "hash_algo": "sha256",
            "ref": {"name": branch},
        });
        let answer = self.client.post(repo, &url, (LFS, body.to_string().as_bytes()), &[])?;
        let batch: Batch = parsed(&url, &answer)?;
        let mut sent = 0;
        for file in files {
            let Some(object) = batch.objects.iter().find(|object| object.oid == file.digest) else {
                let reason = format!("it says nothing of {}", file.digest);
                return Err(HubError::Answer { url, reason });
            };
            if let Some(error) = &object.error {
                let reason = format!("{} is refused: {error}", file.name);
                return Err(HubError::Answer { url, reason });
            }
            // Without actions the hub has it.
            if let Some(upload) = object.actions.as_ref().and_then(|actions| actions.upload.as_ref()) {
                self.send(repo, file, upload, (*done, total))?;
                sent += file.size;
            }
            if let Some(verify) = object.actions.as_ref().and_then(|actions| actions.verify.as_ref()) {
                let body = json!({"oid": file.digest, "size": file.size}).to_string();
                self.client.post(repo, &verify.href, (LFS, body.as_bytes()), &[])?;
            }
            *done += file.size;
        }
        Ok(sent)
    }

    /// A file's bytes, at once or in the parts that the hub asks for.
    fn send(
        &self,
        repo: &Repo,
        file: &Local,
        action: &Action,
        (done, total): (u64, u64),
    ) -> Result<(), HubError> {
        let tell = |bytes: u64| {
            let progress = Progress { repo: repo.name(), file: &file.name, bytes: done + bytes, total };
            self.tell(progress);
        };
        let put = |url: &str, range: Range<u64>| {
            let from = range.start;
            let tell = |bytes: u64| tell(from + bytes);
            self.client.put(repo, url, &Sent { path: &file.path, range, tell: &tell })
        };
        let text = |name: &str| match action.header.get(name) {
            Some(Value::String(text)) => Some(text.clone()),
            Some(Value::Number(number)) => Some(number.to_string()),
            _ => None,
        };
        let Some(chunk) = text("chunk_size") else {
            put(&action.href, 0..file.size)?;
            return Ok(());
        };
        let bad = |reason: &str| HubError::Answer { url: action.href.clone(), reason: reason.to_owned() };
        let chunk: u64 = chunk.parse().ok().filter(|&chunk| chunk > 0).ok_or_else(|| bad("no chunk_size"))?;
        let mut places: Vec<(usize, String)> = (action.header.iter())
            .filter_map(|(name, place)| Some((name.parse().ok()?, place.as_str()?.to_owned())))
            .collect();
        places.sort();
        let expected = file.size.div_ceil(chunk);
        if places.len() as u64 != expected || places.len() > MOST_PARTS {
            return Err(bad(&format!("{} parts for {} bytes in parts of {chunk}", places.len(), file.size)));
        }
        let mut parts = Vec::new();
        for (at, (number, place)) in (0u64..).zip(&places) {
            let tag = put(place, at * chunk..((at + 1) * chunk).min(file.size))?;
            let tag = tag.ok_or_else(|| bad("a part has no ETag"))?;
            parts.push(json!({"partNumber": number, "etag": tag}));
        }
        let body = json!({"oid": file.digest, "parts": parts}).to_string();
        self.client.post(repo, &action.href, (LFS, body.as_bytes()), &[])?;
        Ok(())
    }
}

/// The commit as lines of JSON.
fn commit(files: &[Local], message: &str) -> Result<Vec<u8>, HubError> {
    let mut lines = json!({"key": "header", "value": {"summary": message, "description": ""}}).to_string();
    for Local { name, path, size, digest, large } in files {
        let line = if *large {
            json!({"key": "lfsFile", "value": {"path": name, "algo": "sha256", "oid": digest, "size": size}})
        } else {
            let bytes = std::fs::read(path).map_err(HubError::io(path))?;
            json!({"key": "file", "value": {"path": name, "content": STANDARD.encode(&bytes), "encoding": "base64"}})
        };
        lines.push('\n');
        lines.push_str(&line.to_string());
    }
    Ok(lines.into_bytes())
}

fn parsed<T: serde::de::DeserializeOwned>(url: &str, answer: &[u8]) -> Result<T, HubError> {
    serde_json::from_slice(answer)
        .map_err(|cause| HubError::Answer { url: url.to_owned(), reason: cause.to_string() })
}
