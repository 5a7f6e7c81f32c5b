#!/usr/bin/env python3
"""Starts a cluster, a training job and Debian's Prometheus, and requires data from every query of the dashboards and rules. An alert, which
is empty when all is well, must have data in each of its selectors. Everything started here is stopped by its process id.

    dashboards/live_test.py BUILD/bin
"""
import ctypes
import json
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
import zlib

import queries

MODEL = {"architectures": ["LlamaForCausalLM"], "vocab_size": 256, "hidden_size": 32, "intermediate_size": 64,
         "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 32}
JOB = """name: live
model: {config: model.json, seed: 1}
data: {train: train.bin, validation: train.bin, sequence_length: 16}
mesh: {mode: fl+hsdp, federation_groups: 2, replicas: 1, shards: 2}
training: {steps: 10000000}
federation: {every_steps: 4}
evaluation: {every_rounds: 1, sequences: 4}
"""
TIMEOUT = 90


def die_with_parent():
    """PR_SET_PDEATHSIG: a child ends with this test, however the test ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Processes:
    """Started in order, stopped in reverse: TERM, then KILL."""

    def __init__(self):
        self.running = []

    def start(self, argv, log):
        process = subprocess.Popen([str(a) for a in argv], stdout=log.open("wb"), stderr=subprocess.STDOUT,
                                   stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)
        self.running.append(process)
        return process

    def stop(self):
        for process in reversed(self.running):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for(condition, what):
    deadline = time.monotonic() + TIMEOUT
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            raise SystemExit(f"live_test: no {what} after {TIMEOUT} s")
        time.sleep(0.2)


def start_cluster(bin_folder, folder, processes):
    """A coordinator, a worker with four slots and a job; the coordinator's addresses."""
    data = b"".join(struct.pack("<H", 97 + i % 7) for i in range(4000))
    (folder / "train.bin").write_bytes(data)
    (folder / "train.json").write_text(json.dumps({"dtype": "uint16", "count": 4000, "vocabulary": 256,
                                                   "tokenizer": "bytes", "checksum": f"crc32:{zlib.crc32(data):08x}"}))
    (folder / "model.json").write_text(json.dumps(MODEL))
    (folder / "job.yaml").write_text(JOB)
    address_file = folder / "address.json"
    processes.start([bin_folder / "fedshard-coordinator", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0",
                     "--data-directory", folder / "coordinator", "--address-file", address_file],
                    folder / "coordinator.log")
    wait_for(address_file.exists, "address file")
    address = json.loads(address_file.read_text())
    processes.start([bin_folder / "fedshard-worker", "--coordinator", address["grpc"], "--node-id", "node-0", "--slots", "4",
                     "--data-address", "127.0.0.1", "--log-directory", folder / "logs"], folder / "worker.log")
    submitted = subprocess.run([bin_folder / "fedshard", "submit", folder / "job.yaml", "--coordinator", address["grpc"]],
                               capture_output=True, text=True, timeout=30)
    if submitted.returncode != 0:
        raise SystemExit(f"live_test: submit failed: {submitted.stderr}")
    return address


def start_prometheus(folder, target, processes):
    """Its address. It cannot bind port 0, so a free one is looked for, again when it was taken meanwhile."""
    config = folder / "prometheus.yaml"
    config.write_text("global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
                      f"rule_files: ['{queries.HERE}/prometheus/*.yaml']\n"
                      "scrape_configs:\n  - job_name: fedshard-coordinator\n"
                      f"    static_configs: [{{targets: ['{target}']}}]\n")
    for attempt in range(5):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        process = processes.start(["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/tsdb{attempt}",
                                   f"--web.listen-address={address}"], folder / "prometheus.log")
        url = f"http://{address}"
        deadline = time.monotonic() + TIMEOUT
        while process.poll() is None and time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"{url}/-/ready", timeout=2)
                return url
            except OSError:
                time.sleep(0.2)
        if process.poll() is None:
            break
        processes.running.remove(process)
    raise SystemExit("live_test: Prometheus does not start: " + (folder / "prometheus.log").read_text()[-2000:])


def has_data(url, expression):
    """Whether the query gives at least one number."""
    query = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"{url}/api/v1/query?{query}", timeout=10) as response:
        result = json.load(response)["data"]["result"]
    return any(sample["value"][1] != "NaN" for sample in result)


def all_queries():
    """(where, expression) with Grafana's variables filled in."""
    for path, dashboard in queries.dashboards():
        for panel in queries.panels(dashboard):
            for target in panel["targets"]:
                expression = target["expr"].replace("$__rate_interval", "30s")
                yield f"{path.name}: {panel['title']}", re.sub(r"\$[a-z_]+", ".+", expression)
    for kind, name, expression in queries.rules():
        if kind == "record":
            yield f"rule {name}", name
            yield f"rule {name}", expression
        else:
            for selector in re.findall(r"(?:[a-z_]+:)?(?:fedshard_[a-z0-9_]+|up)(?::[a-z0-9_]+)?(?:\{[^}]*\})?", expression):
                yield f"alert {name}", selector


def main(bin_folder):
    processes = Processes()
    with tempfile.TemporaryDirectory(prefix="fedshard-live-") as name:
        folder = pathlib.Path(name)
        try:
            address = start_cluster(bin_folder, folder, processes)
            url = start_prometheus(folder, address["metrics"], processes)
            missing = dict.fromkeys(all_queries())
            total = len(missing)
            deadline = time.monotonic() + TIMEOUT
            while missing and time.monotonic() < deadline:
                missing = {query: None for query in missing if not has_data(url, query[1])}
                time.sleep(0.5)
            for where, expression in missing:
                print(f"no data: {where}: {expression}")
            print(f"{total - len(missing)} of {total} queries have data")
            page = urllib.request.urlopen(f"http://{address['metrics']}/metrics", timeout=10).read()
            checked = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True)
            if checked.returncode != 0:
                print("promtool check metrics:", checked.stdout.decode() + checked.stderr.decode())
            return 1 if missing or checked.returncode != 0 else 0
        finally:
            processes.stop()


if __name__ == "__main__":
    os.environ.pop("FEDSHARD_COORDINATOR", None)
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve()))
