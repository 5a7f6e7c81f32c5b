"""The systemd units are well-formed, use only variables that their environment files set, and only flags that the binaries know.
    units_test.py BUILD/bin"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent / "systemd"


def check(unit, environment, binary):
    text = unit.read_text()
    for section in ("[Unit]", "[Service]", "[Install]"):
        assert section in text, f"{unit.name}: no {section}"
    command = re.search(r"^ExecStart=(.*)$", text, re.M)[1]
    variables = set(re.findall(r"\$\{?(\w+)\}?", command))
    given = dict(re.findall(r"^(\w+)=(.*)$", environment.read_text(), re.M))
    assert variables == set(given), f"{unit.name}: uses {variables}, {environment.name} sets {set(given)}"
    known = subprocess.run([binary, "--help"], capture_output=True, text=True, timeout=30).stdout
    for flag in re.findall(r"--[a-z-]+", command + " " + given["OPTIONS"]):
        assert flag in known, f"{unit.name}: {binary.name} has no {flag}"


def verify(unit, binary):
    """systemd's own opinion, where it is installed, with the binary at its built place."""
    if shutil.which("systemd-analyze") is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / unit.name
        copy.write_text(unit.read_text().replace(f"/usr/bin/{binary.name}", str(binary)).replace(
            "file:///usr/share/doc", "file:///"))
        result = subprocess.run(["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True, timeout=60)
        errors = [line for line in result.stderr.splitlines() if unit.name in line]
        assert not errors, "\n".join(errors)


def main(bin_folder):
    for name in ("coordinator", "worker"):
        unit = HERE / f"fedshard-{name}.service"
        check(unit, HERE / f"{name}.env", bin_folder / f"fedshard-{name}")
        verify(unit, bin_folder / f"fedshard-{name}")


main(pathlib.Path(sys.argv[1]).resolve())
