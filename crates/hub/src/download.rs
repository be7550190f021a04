//! The download of one file: on from where it was cut, checked, then in its place.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use ureq::Body;
use ureq::http::Response;

use crate::cache::{Cache, make_folder};
use crate::client::Client;
use crate::digest;
use crate::error::HubError;
use crate::repo::Repo;
use crate::tree::TreeFile;
use crate::url::quoted;

/// Attempts without a byte of progress.
const MOST_FAILURES: usize = 5;
/// Attempts altogether.
const MOST_ATTEMPTS: usize = 100;
/// In each of these spans as many bytes have to come.
const SPAN: Duration = Duration::from_secs(60);
const BYTES_A_SPAN: u64 = 16 << 10;

/// A file of a commit.
pub(crate) struct Download<'a> {
    pub(crate) client: &'a Client,
    pub(crate) cache: &'a Cache,
    pub(crate) repo: &'a Repo,
    pub(crate) commit: &'a str,
    pub(crate) name: &'a str,
    pub(crate) file: &'a TreeFile,
}

impl Download<'_> {
    /// Brings the file into the snapshot; `progress` hears how many of its bytes are there.
    pub(crate) fn run(&self, progress: &mut dyn FnMut(u64)) -> Result<(), HubError> {
        let blob = self.cache.blob(self.file.blob());
        let _lock = self.cache.lock(self.file.blob())?;
        // Another process may have been quicker.
        if !blob.is_file() {
            make_folder(blob.parent().unwrap_or(Path::new(".")))?;
            let half = blob.with_file_name(format!("{}.incomplete", self.file.blob()));
            self.fetch(&half, progress)?;
            fs::rename(&half, &blob).map_err(HubError::io(&blob))?;
        }
        self.cache.link(self.commit, self.name, self.file.blob())
    }

    /// Fetches the whole file and checks it; once more from the start if what was there before was not its beginning.
    fn fetch(&self, half: &Path, progress: &mut dyn FnMut(u64)) -> Result<(), HubError> {
        let resumed = fs::metadata(half).map_or(0, |m| m.len()) > 0;
        match self.fetch_from(half, progress) {
            Err(HubError::Digest { .. } | HubError::Length { .. }) if resumed => {
                progress(0);
                self.fetch_from(half, progress)
            }
            other => other,
        }
    }

    fn fetch_from(&self, half: &Path, progress: &mut dyn FnMut(u64)) -> Result<(), HubError> {
        let expected = self.file.bytes();
        let url = format!(
            "{}{}/resolve/{}/{}",
            self.client.settings().endpoint,
            self.repo.path(),
            self.commit,
            quoted(self.name, true)
        );
        let (mut failures, mut attempts) = (0, 0);
        loop {
            let there = fs::metadata(half).map_or(0, |m| m.len());
            if there == expected && (expected > 0 || attempts > 0) {
                break;
            }
            if there > expected {
                fs::remove_file(half).map_err(HubError::io(half))?;
                continue;
            }
            if failures == MOST_FAILURES || attempts == MOST_ATTEMPTS {
                return Err(self.length(expected, there));
            }
            attempts += 1;
            let answer = self.client.file(self.repo, self.commit, &url, there)?;
            self.receive(half, answer, there, &url, progress)?;
            if fs::metadata(half).map_or(0, |m| m.len()) > there {
                failures = 0;
            } else {
                failures += 1;
                self.client.wait(failures - 1);
            }
        }
        self.check(half)
    }

    /// Writes what comes. An answer that is cut is no error: the next attempt goes on.
    fn receive(
        &self,
        half: &Path,
        answer: Response<Body>,
        there: u64,
        url: &str,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), HubError> {
        let expected = self.file.bytes();
        let (mut at, append) = match answer.status().as_u16() {
            206 if range_start(&answer) == Some(there) => (there, true),
            206 => {
                let reason = "a part of a file that was not asked for".to_owned();
                return Err(HubError::Answer { url: url.to_owned(), reason });
            }
            416 => {
                // What is there is no beginning of the file.
                return fs::remove_file(half).map_err(HubError::io(half));
            }
            _ => (0, false),
        };
        let mut options = File::options();
        let mut file = (options.create(true).write(true).append(append).truncate(!append).open(half))
            .map_err(HubError::io(half))?;
        let mut body = answer.into_body().into_reader();
        let mut buffer = vec![0; 1 << 17];
        let mut span = (Instant::now(), at);
        while let Ok(n) = body.read(&mut buffer) {
            if n == 0 {
                break;
            }
            if at + n as u64 > expected {
                drop(file);
                fs::remove_file(half).map_err(HubError::io(half))?;
                return Err(self.length(expected, at + n as u64));
            }
            file.write_all(&buffer[..n]).map_err(HubError::io(half))?;
            at += n as u64;
            progress(at);
            if span.0.elapsed() > SPAN {
                if at - span.1 < BYTES_A_SPAN {
                    break;
                }
                span = (Instant::now(), at);
            }
        }
        file.flush().map_err(HubError::io(half))
    }

    fn check(&self, half: &Path) -> Result<(), HubError> {
        match digest::of_file(half, self.file.blob())? {
            Some(got) if got != self.file.blob() => {
                fs::remove_file(half).map_err(HubError::io(half))?;
                Err(HubError::Digest {
                    repo: self.repo.to_string(),
                    file: self.name.to_owned(),
                    expected: self.file.blob().to_owned(),
                    got,
                })
            }
            _ => Ok(()),
        }
    }

    fn length(&self, expected: u64, got: u64) -> HubError {
        HubError::Length { repo: self.repo.to_string(), file: self.name.to_owned(), expected, got }
    }
}

/// Where the part begins that an answer holds.
fn range_start(answer: &Response<Body>) -> Option<u64> {
    let range = answer.headers().get("content-range")?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split_once('-')?.0.trim().parse().ok()
}
