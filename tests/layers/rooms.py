"""Checks that the rooms of src/ depend only upward and only on what they link.

    python3 tests/layers/rooms.py REPOSITORY

All rooms share one include root, so the compiler lets any file include any other. This reads the
CMakeLists.txt files and every #include "..." and reports, one line each:
  - an include that is not a path from src/;
  - an include of a room that stands below the file's own room in src/CMakeLists.txt;
  - an include of a target that the file's own target does not link: directly, if the file belongs
    to a library or to the program; through its libraries too, if it belongs to a test or a bench;
  - a library that links a target without including anything of it;
  - a library of a room of APART that links, through whatever others, a room that it must not know;
  - a source file that no target builds.
"""
import pathlib
import re
import sys

SOURCE_SUFFIXES = {".h", ".cc", ".inc", ".cu", ".cuh"}
PROGRAM_CALLS = {"halfbyte_test", "halfbyte_cuda_test", "halfbyte_bench", "halfbyte_fuzz"}
KEYWORDS = {"SOURCES", "CUDA_SOURCES", "NO_CUDA_SOURCES", "DEPS", "LABEL", "COST", "PRIVATE",
            "PUBLIC", "INTERFACE"}

# What schedules requests and what speaks OpenAI know neither models nor where they run.
MODELS = {"device", "kernels", "checkpoint", "comm", "moe", "model"}
APART = {"sampling": MODELS, "paging": MODELS, "text": MODELS, "engine": MODELS, "openai": MODELS}


class Target:
    def __init__(self, name, folder, is_room):
        self.name, self.folder, self.is_room = name, folder, is_room
        self.sources, self.deps = set(), []


def calls(cmake_file):
    """Yields (command, [argument...]) of a CMakeLists.txt without nested parentheses."""
    text = re.sub(r"#[^\n]*", "", cmake_file.read_text(encoding="utf-8"))
    for command, arguments in re.findall(r"(\w+)\s*\(([^()]*)\)", text):
        yield command, arguments.replace('"', " ").split()


def read_targets(root):
    """All targets by name, from every CMakeLists.txt under src, tests and bench."""
    targets = {}
    for top in ("src", "tests", "bench"):
        for cmake_file in sorted((root / top).rglob("CMakeLists.txt")):
            folder = cmake_file.parent
            bodies = []  # kernel bodies that halfbyte_simd_sources compiles
            for command, arguments in calls(cmake_file):
                if command == "halfbyte_simd_sources":
                    bodies.append(arguments[1])
                if command in {"add_executable", "halfbyte_library"} | PROGRAM_CALLS:
                    name, is_room = arguments[0], command not in PROGRAM_CALLS
                    target = targets.setdefault(name, Target(name, folder, is_room))
                    section = "SOURCES"
                    for word in arguments[1:]:
                        if word in KEYWORDS:
                            section = word
                        elif section.endswith("SOURCES"):
                            names = bodies if word.startswith("${") else [word]
                            target.sources |= {folder / name for name in names}
                        elif section == "DEPS":
                            target.deps.append(word)
                elif command == "target_link_libraries" and arguments[0] in targets:
                    targets[arguments[0]].deps += [w for w in arguments[1:] if w not in KEYWORDS]
    return targets


def includes(path):
    """Yields (line number, included path) for each #include "..."."""
    text = path.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
        if match:
            yield number, match.group(1)


def closure(names, targets):
    reached, todo = set(), list(names)
    while todo:
        name = todo.pop()
        if name in targets and name not in reached:
            reached.add(name)
            todo += targets[name].deps
    return reached


def check(root):
    """Returns the faults of the tree at `root`, one sentence each."""
    root = pathlib.Path(root).resolve()
    src = root / "src"
    order = [a[0] for c, a in calls(src / "CMakeLists.txt") if c == "add_subdirectory"]
    targets = read_targets(root)
    libraries = {}  # folder -> the library or main program that its headers belong to
    for target in targets.values():
        if target.is_room:
            if target.folder in libraries:
                raise SystemExit(f"{target.folder}: two libraries in one folder; give each its own")
            libraries[target.folder] = target

    def library_of(path):
        """The library of the nearest folder at or above `path` that has a CMakeLists.txt."""
        for folder in path.parents:
            if (folder / "CMakeLists.txt").exists():
                return libraries.get(folder)
        return None

    def room_of(path):
        return path.relative_to(src).parts[0] if src in path.parents else None

    faults = []
    used = {}  # library name -> names of the libraries its own files include
    files = sorted(p for top in ("src", "tests", "bench") for p in (root / top).rglob("*")
                   if p.suffix in SOURCE_SUFFIXES)
    for path in files:
        where = path.relative_to(root)
        owners = [t for t in targets.values() if path in t.sources]
        if not owners and path.suffix in (".cc", ".cu"):
            faults.append(f"{where}: no CMakeLists.txt builds this file")
            continue
        is_program = bool(owners) and not any(t.is_room for t in owners)
        own = owners[0] if owners else library_of(path)
        room = room_of(path)
        if room is not None and room not in order:
            faults.append(f"{where}: room '{room}' is not listed in src/CMakeLists.txt")
            continue
        for number, name in includes(path):
            there = src / name
            if room is None and (root / "tests" / name).is_file():
                continue  # a header that tests share
            if not there.is_file():
                faults.append(f'{where}:{number}: "{name}" is not a file under src/')
                continue
            other_room, other = room_of(there), library_of(there)
            if room is not None and order.index(other_room) > order.index(room):
                faults.append(f"{where}:{number}: room '{room}' stands above '{other_room}' and "
                              f"must not include {name}")
                continue
            if other is None and other_room == room:
                continue  # headers that a room shares among its own folders
            if own is None:
                continue  # such a header itself: its room's libraries link what it includes
            linked = closure(own.deps, targets) if is_program else set(own.deps) & set(targets)
            if other is None:  # such a header of another room: any library of that room will do
                if other_room not in {room_of(targets[name].folder / "x") for name in linked}:
                    faults.append(f"{where}:{number}: includes {name}, but {own.name} links "
                                  f"nothing of room '{other_room}'")
            elif is_program:
                if other.name not in linked:
                    faults.append(f"{where}:{number}: includes {name}, but its target "
                                  f"{own.name} does not link {other.name}")
            elif other is not own:
                used.setdefault(own.name, set()).add(other.name)
                if other.name not in linked:
                    faults.append(f"{where}:{number}: includes {name}, but {own.name} does not "
                                  f"link {other.name}: add it to its DEPS")
    for library in libraries.values():
        room = room_of(library.folder / "x")
        reached = {room_of(targets[name].folder / "x") for name in closure(library.deps, targets)}
        for other_room in sorted(reached & APART.get(room, set())):
            where = library.folder.relative_to(root)
            faults.append(f"{where}/CMakeLists.txt: {library.name} links '{other_room}', which "
                          f"the room '{room}' must not know")
        for dep in library.deps:
            if dep in targets and dep not in used.get(library.name, set()):
                faults.append(f"{library.folder.relative_to(root)}/CMakeLists.txt: {library.name} "
                              f"links {dep} but includes nothing of it")
    return faults


if __name__ == "__main__":
    found = check(sys.argv[1])
    print("\n".join(found) or "rooms depend only upward and only on what they link")
    sys.exit(1 if found else 0)
