#!/usr/bin/env python3
"""Divides the library into parts for scripts/mutants, picks a part's mutants, and reports their outcomes.

scripts/mutants.py files LIST.json [PART …]   prints the mutated files of these parts
scripts/mutants.py copy LIST.json TREE        copies the repository's files into TREE if they differ, except for the
                                              mutated files
scripts/mutants.py report OUTCOMES COMMIT     writes the rows into scripts/mutants.results; exits with 1 if a mutant
                                              survives that isn't in scripts/mutants.survivors
"""
import collections
import datetime
import json
import pathlib
import re
import shutil
import subprocess
import sys

RESULTS = pathlib.Path("scripts/mutants.results")
SURVIVORS = pathlib.Path("scripts/mutants.survivors")
# A file belongs to the first part whose pattern it matches.
PARTS = [
    ("vocabulary", r"src/(key|key_fields|fingerprint|record|time|error|format|outcome|selector|finite|settings|failure)\b"),
    ("protocol", r"src/protocol\b"),
    ("stores", r"src/store\b"),
    ("lambda", r"src/lambda\b"),
    ("client", r"src/client\b"),
    ("testing", r"src/testing\b"),
    ("run", r"src/"),
]
COLUMNS = ["caught", "timeout", "missed", "unreached", "uncompiled", "unswitched"]
HEAD = """\
# Written by scripts/mutants, one row per part. Caught: a test failed. Timed-out: a test didn't end in time. Survived:
# all tests that reach the mutant passed. Unreached: no test reaches the mutant. Not-built: the mutant doesn't compile.
# Not-switched: the mutant is in code that runs at compile time, or in a function that returns an `impl` type.
# cargo-mutants itself can try such mutants. caught% counts the timed-out mutants as caught.
part        mutants   caught timed-out survived unreached not-built not-switched  caught%  commit date
"""


def part_of(name):
    return next(part for part, pattern in PARTS if re.match(pattern, name))


def mutated(path):
    return {mutant["file"] for mutant in json.loads(pathlib.Path(path).read_text())}


def files(path, parts):
    unknown = set(parts) - {part for part, _ in PARTS}
    if unknown:
        sys.exit(f"scripts/mutants: {', '.join(sorted(unknown))} isn't a part; use {', '.join(p for p, _ in PARTS)}")
    print(*(file for file in sorted(mutated(path)) if not parts or part_of(file) in parts), sep="\n")


def copy(path, tree):
    """Copies only files that differ, so that Cargo doesn't compile the others again."""
    tree, written = pathlib.Path(tree), mutated(path) | {"src/lib.rs"}
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=True).stdout
    kept = set(listed.split("\0")) - {""}
    for old in [file for file in tree.rglob("*") if not file.is_dir()]:
        if str(old.relative_to(tree)) not in kept:
            old.unlink()
    for name in kept - written:
        source, target = pathlib.Path(name), tree / name
        if source.is_file() and not (target.is_file() and target.read_bytes() == source.read_bytes()):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    for name in written:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)


def row(part, counts, commit):
    numbers = [counts[column] for column in COLUMNS]
    caught, survived = numbers[0] + numbers[1], numbers[2] + numbers[3]
    share = 100 * caught / max(1, caught + survived)
    cells = " ".join(f"{number:>9}" for number in numbers)
    return f"{part:<11} {sum(numbers):>7} {cells}    {share:>8.1f}  {commit} {datetime.date.today()}"


def report(path, commit):
    counts = collections.defaultdict(collections.Counter)
    survivors = []
    for line in pathlib.Path(path).read_text().splitlines():
        outcome, _, name = line.split("\t")
        counts[part_of(name)][outcome] += 1
        if outcome in ("missed", "unreached"):
            # Drop line and column, because they change with every edit of the file.
            survivors.append(re.sub(r":\d+:\d+:", ":", name))
    rows = dict(line.split(" ", 1) for line in RESULTS.read_text().splitlines() if not line.startswith(("#", "part")))
    rows |= {part: row(part, counts[part], commit).split(" ", 1)[1] for part in counts}
    written = "".join(f"{part} {rows[part]}\n" for part, _ in PARTS if part in rows)
    RESULTS.write_text(HEAD + written)
    print(HEAD + written, end="")
    known = {line.split("  # ")[0] for line in SURVIVORS.read_text().splitlines() if not line.startswith("#")}
    unknown = [name for name in survivors if name not in known]
    if unknown:
        print("survivors without a reason in scripts/mutants.survivors:", *unknown, sep="\n", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["files", path, *parts]:
            files(path, parts)
        case ["copy", path, tree]:
            copy(path, tree)
        case ["report", path, commit]:
            report(path, commit)
        case _:
            sys.exit(__doc__)
