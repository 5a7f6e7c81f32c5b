#!/usr/bin/env python3
"""Runs the four modes as whole jobs and prints tokens/s, bytes, round decision latency and peak memory, side by side.

    scripts/quickstart && bench/jobs.py --rounds 3

All modes use the same model, data and 8 ranks; they run in turn, several times, and medians and ratios to the first
mode are printed, because single figures of a shared machine mean little.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODES = {
    "fsdp": "{mode: fsdp, shards: 8}",
    "hsdp": "{mode: hsdp, replicas: 2, shards: 4}",
    "fl+fsdp": "{mode: fl+fsdp, federation_groups: 2, shards: 4}",
    "fl+hsdp": "{mode: fl+hsdp, federation_groups: 2, replicas: 2, shards: 2}",
}


def job_file(folder: pathlib.Path, mode: str, steps: int) -> pathlib.Path:
    text = (ROOT / "examples/shakespeare/fl-hsdp.yaml").read_text()
    text = re.sub(r"(?m)^mesh:.*$", f"mesh: {MODES[mode]}", text)
    text = re.sub(r"(?m)^(\s+)steps:\s*\d+", rf"\g<1>steps: {steps}", text)
    text = re.sub(r"(?m)^evaluation:.*(\n[ ]+.*)*", "evaluation: {every_rounds: 0, sequences: 8}", text)
    here = (ROOT / "examples/shakespeare").as_posix()
    text = re.sub(r"(train|validation): ([^,}\s]+)", lambda m: f"{m[1]}: {os.path.join(here, m[2])}", text)
    text = re.sub(r"config: ([^,}\s]+)", lambda m: f"config: {os.path.join(here, m[1])}", text)
    path = folder / f"bench-{mode.replace('+', '-')}.yaml"
    path.write_text(text)
    return path


class PeakMemory(threading.Thread):
    """Highest VmHWM of any trainer below a process, in MiB, by looking at /proc a few times a second."""

    def __init__(self, root_pid: int):
        super().__init__(daemon=True)
        self.root_pid, self.peak_mib, self.done = root_pid, 0.0, threading.Event()

    def run(self):
        while not self.done.wait(0.2):
            for pid in self.below(self.root_pid):
                try:
                    status = pathlib.Path(f"/proc/{pid}/status").read_text()
                except OSError:
                    continue
                if status.startswith("Name:\tfedshard-traine"):
                    match = re.search(r"VmHWM:\s+(\d+)", status)
                    if match:
                        self.peak_mib = max(self.peak_mib, int(match[1]) / 1024)

    def below(self, pid: int):
        try:
            tasks = os.listdir(f"/proc/{pid}/task")
        except OSError:
            return
        for task in tasks:
            try:
                children = pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text().split()
            except OSError:
                continue
            for child in children:
                yield int(child)
                yield from self.below(int(child))


def run_once(binary: pathlib.Path, job: pathlib.Path) -> dict:
    process = subprocess.Popen(
        [binary, "local", "run", job, "--nodes", "2", "--slots", "4", "-o", "json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    memory = PeakMemory(process.pid)
    memory.start()
    started = time.monotonic()
    out, err = process.communicate(timeout=900)
    memory.done.set()
    if process.returncode != 0:
        sys.exit(f"{job.name} failed: {err}")
    result = json.loads(out)
    result["peak_mib"] = memory.peak_mib
    result["total_seconds"] = time.monotonic() - started
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each mode")
    args = parser.parse_args()
    results = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory() as folder:
        jobs = {mode: job_file(pathlib.Path(folder), mode, args.steps) for mode in MODES}
        for _ in range(args.rounds):
            for mode in MODES:
                results[mode].append(run_once(args.build / "bin/fedshard", jobs[mode]))
    base = statistics.median(r["tokens_per_second"] for r in results["fsdp"])
    print("| mode | tokens/s (median, min-max) | ratio to fsdp | MB per rank and step: shard / replica / federation "
          "| peak MiB per rank |")
    print("| --- | --- | --- | --- | --- |")
    for mode, runs in results.items():
        rates = sorted(r["tokens_per_second"] for r in runs)
        bytes_ = runs[0]["bytes_per_rank_per_step"]
        print(f"| {mode} | {statistics.median(rates):.0f} ({rates[0]:.0f}-{rates[-1]:.0f}) "
              f"| {statistics.median(rates) / base:.2f} "
              f"| {bytes_['shard'] / 1e6:.2f} / {bytes_['replica'] / 1e6:.2f} / {bytes_['federation'] / 1e6:.2f} "
              f"| {max(r['peak_mib'] for r in runs):.0f} |")


if __name__ == "__main__":
    main()
