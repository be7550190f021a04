//! `burnish serve`: a model and its adapters for OpenAI's clients.

use std::process::ExitCode;

#[cfg(not(feature = "serve"))]
pub(crate) fn run(_: &[String]) -> anyhow::Result<ExitCode> {
    crate::refusal::refuse!(
        NotBuilt,
        "this program was built without its server; build it with --features serve"
    )
}

#[cfg(feature = "serve")]
pub(crate) use with_server::run;

#[cfg(feature = "serve")]
mod with_server {
    use std::net::TcpListener;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use anyhow::Context;
    use burnish_config::ServeOptions;
    use burnish_config::groups::GenerationOptions;
    use burnish_serve::{App, AppOptions, Connections, Engine, EngineOptions, serve};
    use burnish_trainers::Prepared;

    use super::ExitCode;
    use crate::refusal::refusal;
    use crate::served::{Mixed, Served, adapters, name_of};

    /// How often the wish to stop is looked at.
    const LOOK: Duration = Duration::from_millis(50);

    pub(crate) fn run(words: &[String]) -> anyhow::Result<ExitCode> {
        let words = crate::first_as("model_name_or_path", words);
        let Some(resolved) = crate::options::<ServeOptions>(&words)? else { return Ok(ExitCode::SUCCESS) };
        let ServeOptions { model, quantization, serving } = resolved.options;
        // The address first: a port that is taken should not cost the time of loading a model.
        let address = format!("{}:{}", serving.host, serving.port);
        let listener = TcpListener::bind((serving.host.as_str(), serving.port as u16))
            .map_err(|error| refusal!(CannotListen, "cannot listen on {address}: {error}"))?;
        let bound = listener.local_addr().context("cannot tell the address")?;
        let api_key = serving.api_key.clone().or_else(|| std::env::var("BURNISH_API_KEY").ok());
        let api_key = api_key.filter(|key| !key.is_empty());
        if !bound.ip().is_loopback() && api_key.is_none() {
            crate::voice::note("anybody who reaches this address can use the model: set api_key");
        }
        let (served, base) = Served::open(&model, &quantization)?;
        let folder = served.folder();
        let rows = served.rows(serving.chat_template_path.as_ref(), serving.eos_token.as_ref())?;
        let (seed, disable_compile) = (serving.seed, serving.enforce_eager);
        let sampled = GenerationOptions { seed, disable_compile, ..GenerationOptions::default() };
        let mut generation = crate::generate::settings(folder, &rows, &sampled, serving.eos_token.is_some())?;
        // A request without a temperature is drawn at 1, as OpenAI's, or at the folder's.
        generation.sampling.do_sample = true;
        let max_model_len = serving.max_model_len.unwrap_or(folder.spec().max_positions);

        let name = serving.served_model_name.clone().unwrap_or_else(|| name_of(&model.model_name_or_path));
        let options = EngineOptions { max_num_seqs: serving.max_num_seqs, max_queue: serving.max_queue };
        let engine = Arc::new(Engine::new(options));
        let adapters = adapters(&model, &serving.lora_modules);
        let Mixed { decoder, alone } = served.mixed(&adapters)?;
        let together = adapters.iter().map(|(name, _)| name).filter(|name| !alone.contains(name));
        let names: Vec<&str> = [&name].into_iter().chain(together).map(String::as_str).collect();
        engine.add_mixed(&names, decoder.unwrap_or(base))?;
        for (name, path) in adapters.iter().filter(|(name, _)| alone.contains(&name)) {
            engine.add(name, served.adapter(path)?)?;
        }
        let served = Arc::new(served);
        let load_adapter = serving.allow_runtime_lora_updating.then(|| {
            let served = served.clone();
            let load =
                move |path: &str| served.adapter(Path::new(path)).map_err(|error| format!("{error:#}"));
            Box::new(load) as burnish_serve::LoadAdapter
        });
        let app = AppOptions { max_model_len, generation, api_key, max_body_bytes: 8 << 20, load_adapter };
        let Prepared { tokenizer, templates, rules } = rows;
        let app = App::new(engine.clone(), (tokenizer, templates, rules), app);

        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        crate::interrupt::listen(move || asked.store(true, Ordering::SeqCst))?;
        crate::voice::closing(format_args!("serving {} at http://{bound}/v1", engine.names().join(", ")));
        let connections = Connections {
            shutdown_timeout: Duration::from_secs_f64(serving.shutdown_timeout),
            ..Connections::default()
        };
        let waited = serve(listener, app, connections, LOOK, move || stop.load(Ordering::SeqCst))?;
        if waited {
            engine.finish();
            crate::voice::say("stopped: every answer that was asked for has been given");
        } else {
            crate::voice::say(format_args!(
                "stopped: some answers took longer than shutdown_timeout, {} s",
                serving.shutdown_timeout
            ));
        }
        Ok(ExitCode::SUCCESS)
    }
}
