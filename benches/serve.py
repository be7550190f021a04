#!/usr/bin/env python3
"""`burnish serve` under load, beside `transformers serve`.

    serve.py --burnish target/release/burnish --models examples/base,random-512x8 [--clients 1,16,64] [--turns 4] [--tokens 32] [--scratch FOLDER]
             [--servers burnish,burnish-64,transformers,transformers-batching] [--python PYTHON] [--out FOLDER]

Each server is started on the loopback with one model in float32 and asked by clients at once, each of which has a
prompt of its own and asks for it again and again (`--turns`), greedily and in pieces (`stream`): a client sends its next
request when the answer before has ended. Before that every prompt is asked alone; an answer under load has to be the
same text, or it is counted as other (mixed up, cut off, or rounded otherwise). An answer that does not come or has no
end is counted as lost.

`random-WIDTHxLAYERS` is a Llama with random weights and the tokenizer and template of examples/base, whose answers have
all their `--tokens`.

What is measured, by the clients:

* first token: from the request's first byte out to the first piece with text in; of all requests the 50th and 99th
  percentile;
* tokens/s: tokens of all answers, as the server counts them (`usage`), over the time from the first request to the last
  answer;
* peak memory: the greatest resident set of the server (VmHWM).

The clients are one Python process with asyncio on plain sockets; it takes a share of the machine's cores, the same for
every server. `burnish` runs 16 sequences at once (its default), `burnish-64` 64. Run it on a quiet machine.
"""

import argparse
import asyncio
import csv
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

WORDS = ("cow cat snake fish hen dog horse sheep pig duck frog bee owl fox bear wolf lion crab whale mouse "
         "goat bat ant crow deer eel hare kite lamb mole newt").split()
QUESTIONS = ["Where does a {} live?", "What sound does a {} make?", "Count the legs of a {}."]
PATIENCE_S = 300


def prompts(count):
    every = [question.format(word) for word in WORDS for question in QUESTIONS]
    if count > len(every):
        sys.exit(f"there are {len(every)} prompts, {count} clients need one each")
    return every[:count]


def folder_of(model, scratch):
    """The model's folder; one with random weights is made once."""
    if not model.startswith("random-"):
        return Path(model).resolve()
    width, layers = map(int, model.removeprefix("random-").split("x"))
    folder = (scratch / model).resolve()
    if not (folder / "model.safetensors").exists():
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        base = Path(__file__).resolve().parent.parent / "examples" / "base"
        folder.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(0)
        LlamaForCausalLM(LlamaConfig(
            hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 64, num_key_value_heads=width // 128,
            intermediate_size=width * 11 // 4, vocab_size=1024, max_position_embeddings=512, bos_token_id=None,
            eos_token_id=None, pad_token_id=0)).save_pretrained(folder)
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(base / name, folder)
    return folder


# ---- a client ----------------------------------------------------------------------------------------

async def ask(port, model, prompt, tokens):
    """One request: seconds to the first text, text, tokens, whether it ended as it should."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens,
                       "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}).encode()
    head = (f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n").encode()
    start, first, text, counted, ended = time.perf_counter(), None, "", 0, False
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head + body)
        status = await reader.readline()
        if b" 200 " not in status:
            return dict(first_s=None, text=f"{status.decode()} {(await reader.read(2000)).decode()}", tokens=0, ended=False)
        async for line in reader:
            if not line.startswith(b"data: "):
                continue
            said = line[6:].strip()
            if said == b"[DONE]":
                break
            chunk = json.loads(said)
            for choice in chunk.get("choices") or []:
                piece = (choice.get("delta") or {}).get("content") or ""
                if piece and first is None:
                    first = time.perf_counter() - start
                text += piece
                ended |= choice.get("finish_reason") is not None
            counted = (chunk.get("usage") or {}).get("completion_tokens") or counted
    finally:
        writer.close()
    return dict(first_s=first, text=text, tokens=counted, ended=ended)


async def patient(*request):
    try:
        return await asyncio.wait_for(ask(*request), PATIENCE_S)
    except (OSError, asyncio.TimeoutError, ValueError) as error:
        return dict(first_s=None, text=f"{type(error).__name__}: {error}", tokens=0, ended=False)


async def load(port, model, asked, turns, tokens):
    """All clients at once; their answers and the time that it took."""
    async def client(prompt):
        return [await patient(port, model, prompt, tokens) for _ in range(turns)]

    start = time.perf_counter()
    answers = await asyncio.gather(*(client(prompt) for prompt in asked))
    return answers, time.perf_counter() - start


async def alone(port, model, asked, tokens):
    return [await patient(port, model, prompt, tokens) for prompt in asked]


# ---- a server ----------------------------------------------------------------------------------------

def command(server, model, port, options):
    if server.startswith("burnish"):
        at_once = server.removeprefix("burnish").removeprefix("-") or "16"
        return [options.burnish, "serve", "--model_name_or_path", model, "--port", str(port),
                "--max_num_seqs", at_once, "--max_queue", "1000"]
    # Its cache would take nine tenths of the free memory.
    batching = ["--continuous-batching", "--cb-max-memory-percent", "0.1"] if server.endswith("-batching") else []
    return [options.python, "-m", "transformers.cli.transformers", "serve", model, "--host", "127.0.0.1", "--port",
            str(port), "--device", "cpu", "--dtype", "float32", *batching]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def peak_bytes(process):
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


def is_up(port):
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            return b" 200 " in connection.recv(100)
    except OSError:
        return False


def measure(server, model, options):
    """The rows of a server."""
    port, folder = free_port(), str(folder_of(model, options.scratch))
    log = options.out / f"{server}.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(command(server, folder, port, options), stdout=sink, stderr=subprocess.STDOUT,
                                   env={**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"})
    rows = []
    try:
        begun = time.perf_counter()
        while not is_up(port):
            if process.poll() is not None or time.perf_counter() - begun > 120:
                sys.exit(f"{server} does not come up; see {log}")
            time.sleep(0.05)
        name = Path(folder).name if server.startswith("burnish") else folder
        most = prompts(max(options.clients))
        asyncio.run(alone(port, name, most[:2], options.tokens))
        expected = asyncio.run(alone(port, name, most, options.tokens))
        if not all(answer["ended"] for answer in expected):
            sys.exit(f"{server} does not answer: {next(a['text'] for a in expected if not a['ended'])}")
        for clients in options.clients:
            busy = os.getloadavg()[0]
            answers, seconds = asyncio.run(load(port, name, most[:clients], options.turns, options.tokens))
            flat = [(answer, right["text"]) for own, right in zip(answers, expected) for answer in own]
            first = sorted(answer["first_s"] for answer, _ in flat if answer["first_s"] is not None)
            percent = lambda share: first[min(len(first) - 1, int(share * len(first)))] if first else None
            rows.append(dict(
                model=Path(folder).name, server=server, clients=clients, requests=len(flat),
                lost=sum(not answer["ended"] for answer, _ in flat),
                other=sum(answer["ended"] and answer["text"] != right for answer, right in flat),
                first_p50_s=percent(0.5), first_p99_s=percent(0.99),
                tokens=sum(answer["tokens"] for answer, _ in flat), seconds=seconds,
                tokens_per_s=sum(answer["tokens"] for answer, _ in flat) / seconds,
                peak_bytes=peak_bytes(process), load_before=busy))
            print(rows[-1], flush=True)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
    return rows


def summary(rows):
    lines = ["| model | server | clients | requests | lost | other | first token p50, s | p99, s | tokens/s | peak memory, MiB |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    shown = lambda value, digits: "" if value is None else f"{value:.{digits}f}"
    for row in rows:
        lines.append(f"| {row['model']} | {row['server']} | {row['clients']} | {row['requests']} | {row['lost']} | "
                     f"{row['other']} | {shown(row['first_p50_s'], 3)} | {shown(row['first_p99_s'], 3)} | "
                     f"{row['tokens_per_s']:.0f} | {row['peak_bytes'] // 2**20} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--burnish", default="target/release/burnish")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--models", required=True, type=lambda text: text.split(","))
    parser.add_argument("--servers", default="burnish,burnish-64,transformers,transformers-batching",
                        type=lambda text: text.split(","))
    parser.add_argument("--clients", default="1,16,64", type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--scratch", type=Path, default=Path("/tmp/burnish-serve"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for model in options.models:
        for server in options.servers:
            rows += measure(server, model, options)
    # Calls for one server or model at a time add to what is there.
    path = options.out / "serve.csv"
    known = list(csv.DictReader(path.open())) if path.exists() else []
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(known + rows)
    print(summary(rows))


if __name__ == "__main__":
    main()
