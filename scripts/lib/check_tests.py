"""Every *_test.cc is named in the CMakeLists.txt of its folder, so that no test is forgotten. Exit 1 with one line per breach."""
import pathlib
import re
import subprocess
import sys


def main():
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*_test.cc", "*_test.py"],
                           capture_output=True, text=True, check=True).stdout.split()
    errors = []
    for name in files:
        path = pathlib.Path(name)
        if not path.exists():
            continue
        lists = path.parent / "CMakeLists.txt"
        text = lists.read_text() if lists.exists() else ""
        # By file name, or by its stem in a foreach.
        if not re.search(rf"\b{re.escape(path.name)}\b|\b{re.escape(path.stem)}\b", text):
            errors.append(f"{name}: is not registered in {lists}")
    print("\n".join(errors))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
