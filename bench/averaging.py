#!/usr/bin/env python3
"""Trains the same small job with each way of averaging and prints the loss it ends with, bytes between groups and memory.

    scripts/quickstart && bench/averaging.py --steps 256

Four groups of one rank on the quickstart's model and data, the variants in turn. One run each: losses are reproducible,
there is one thread per rank. Memory is that of the largest rank.
"""
import argparse
import pathlib
import re
import tempfile

import jobs

VARIANTS = {
    "plain mean": "",
    "outer momentum 1.0, 0.5": "outer_optimizer: {type: momentum, learning_rate: 1.0, momentum: 0.5}",
    "outer nesterov 0.7, 0.9 (DiLoCo)": "outer_optimizer: {type: nesterov}",
    "outer nesterov 1.0, 0.5": "outer_optimizer: {type: nesterov, learning_rate: 1.0, momentum: 0.5}",
    "outer adam 1e-3": "outer_optimizer: {type: adam}",
    "optimizer_state: average": "optimizer_state: average",
    "optimizer_state: reset": "optimizer_state: reset",
    "compression: bf16": "compression: bf16",
    "compression: int8": "compression: int8",
    "outer nesterov 1.0, 0.5, int8":
        "outer_optimizer: {type: nesterov, learning_rate: 1.0, momentum: 0.5}, compression: int8",
}


def job_file(folder: pathlib.Path, number: int, options: str, args) -> pathlib.Path:
    path = jobs.job_file(folder, "fl+fsdp", args.steps)
    text = path.read_text()
    text = re.sub(r"(?m)^name:.*$", f"name: averaging-{number}", text)
    text = re.sub(r"(?m)^mesh:.*$", "mesh: {mode: fl+fsdp, federation_groups: 4, shards: 1}", text)
    federation = ", ".join(filter(None, [f"every_steps: {args.every}", options]))
    text = re.sub(r"(?m)^federation:.*$", f"federation: {{{federation}}}", text)
    text = re.sub(r"(?m)^evaluation:.*$", "evaluation: {every_rounds: 0, sequences: 64}", text)
    path = folder / f"averaging-{number}.yaml"
    path.write_text(text)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=jobs.ROOT / "build")
    parser.add_argument("--steps", type=int, default=256)
    parser.add_argument("--every", type=int, default=16, help="A")
    parser.add_argument("--only", help="variants that contain this")
    args = parser.parse_args()
    print("| averaging | validation loss | MB per rank and round between groups | peak MiB per rank | seconds |")
    print("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, options) in enumerate(VARIANTS.items()):
            if args.only and args.only not in name:
                continue
            job = job_file(pathlib.Path(folder), number, options, args)
            result = jobs.run_once(args.build / "bin/fedshard", job)
            per_round = result["bytes_per_rank_per_step"]["federation"] * args.every / 1e6
            print(f"| {name} | {result['validation_loss']['last']:.4f} | {per_round:.3f} | {result['peak_mib']:.0f} "
                  f"| {result['total_seconds']:.0f} |", flush=True)


if __name__ == "__main__":
    main()
