"""Who may include whom: the walls of the house, as a short list. Exit 1 with one line per breach."""
import pathlib
import re
import subprocess
import sys

# Room -> rooms whose headers it may include, besides its own. A room covers its subfolders unless they are listed themselves.
ALLOWED = {
    "common": [],
    "common/spec": ["common", "proto"],
    "coordinator/core": ["common"],
    "coordinator/storage": ["common", "coordinator/core"],
    "coordinator/service": ["common", "proto", "coordinator/core", "coordinator/storage"],
    "coordinator/rpc": ["common", "common/spec", "proto", "coordinator/core", "coordinator/service"],
    "coordinator/metrics": ["common", "coordinator/core", "coordinator/service"],
    "coordinator": ["common", "coordinator/core", "coordinator/storage", "coordinator/service", "coordinator/rpc",
                    "coordinator/metrics"],
    "worker/supervisor": ["common"],
    "worker/daemon": ["common", "proto", "worker/supervisor"],
    "worker/cuda_plugin": [],
    "worker/kernels": ["worker/cuda_plugin"],
    "worker/collective": ["common", "worker/cuda_plugin"],
    "worker/engine": ["common", "worker/kernels", "worker/collective"],
    "worker/federation": ["worker/collective"],
    "planner": ["common", "worker/engine"],
    "worker/data": ["common"],
    "worker/checkpoint": ["common", "worker/collective", "worker/engine"],
    "worker/trainer": ["common", "common/spec", "proto", "worker/engine", "worker/collective", "worker/federation",
                       "worker/data", "worker/checkpoint"],
    "worker/inference": ["common", "common/spec", "worker/engine", "worker/collective", "worker/data",
                         "worker/checkpoint", "worker/trainer"],
    "cli": ["common", "common/spec", "proto", "worker/data", "worker/checkpoint", "worker/inference", "planner"],
    "bench": ["common", "worker/engine", "worker/collective", "worker/kernels", "worker/federation"],
    "tests": ["common", "common/spec", "coordinator/core", "coordinator/storage", "worker/engine", "worker/collective",
              "worker/federation", "worker/kernels", "worker/checkpoint", "planner"],
    "cmake": [],
}
# Rooms that must build with LibTorch alone.
TORCH_ONLY = ("worker/cuda_plugin", "worker/kernels", "worker/collective", "worker/engine", "worker/federation")
# Of `common`, these rooms may use headers without dependencies only.
PLAIN_COMMON = {"common/mesh.h", "common/model_config.h", "common/mutex.h", "common/trainer_exit.h"}
FOREIGN = re.compile(r"^(absl/|grpc|google/protobuf|fedshard/v1/|yaml-cpp/|nlohmann/|prometheus/|CivetServer)")
TORCH = re.compile(r"^(ATen/|torch/|c10/)")
RPC = re.compile(r"^(grpc|google/protobuf|fedshard/v1/)")
INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.M)


def room_of(path):
    """The longest listed room that holds the path."""
    best = ""
    for room in ALLOWED:
        if path.startswith(room + "/") and len(room) > len(best):
            best = room
    return best


def is_test_of(path, other):
    """Tests of the coordinator's rooms start it whole, journal included."""
    is_test = path.endswith("_test.cc") or "/testing/" in path
    return path.startswith("coordinator/") and is_test and other == "coordinator/storage"


def closure(path, includes, seen):
    """All headers of ours that a file reaches, itself included."""
    if path in seen or path not in includes:
        return seen
    seen.add(path)
    for header in includes[path]:
        closure(header, includes, seen)
    return seen


def main():
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.cc", "*.h", "*.cu"], capture_output=True,
                           text=True, check=True).stdout.split()
    files = [f for f in files if "gloo_stubs" not in f and pathlib.Path(f).exists()]
    texts = {f: pathlib.Path(f).read_text() for f in files}
    includes = {f: INCLUDE.findall(text) for f, text in texts.items()}
    errors = []
    for path, headers in includes.items():
        room = room_of(path)
        if not room:
            errors.append(f"{path}: is in no room; list it in scripts/lib/check_includes.py")
            continue
        is_test = path.endswith("_test.cc") or "/testing/" in path or path.startswith("tests/")
        for header in headers:
            other = "proto" if header.startswith("fedshard/v1/") else room_of(header)
            if other and other != room and other not in ALLOWED[room] and not is_test_of(path, other):
                errors.append(f"{path}: {room} must not include {header} of {other}")
            if room in TORCH_ONLY and not is_test:
                if FOREIGN.match(header):
                    errors.append(f"{path}: {room} builds with LibTorch alone, but includes {header}")
                if other == "common" and header not in PLAIN_COMMON:
                    errors.append(f"{path}: {room} may use of common only {', '.join(sorted(PLAIN_COMMON))}, not {header}")
        if path.endswith(".cc"):
            reached = [h for f in closure(path, includes, set()) for h in includes[f]]
            if any(TORCH.match(h) for h in reached) and any(RPC.match(h) for h in reached):
                errors.append(f"{path}: LibTorch and gRPC headers in one translation unit")
        if any(h.startswith("absl/") for h in headers) and re.search(r"\bstd::string_view\b", texts[path]):
            errors.append(f"{path}: std::string_view beside Abseil, whose string_view is another type here")
        for number, line in enumerate(texts[path].splitlines(), 1):
            if re.search(r"\b(TODO|FIXME|XXX)\b", line):
                errors.append(f"{path}:{number}: unfinished work")
    print("\n".join(errors))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
