"""Installs the library, moves it elsewhere, and uses it as a stranger would.

    python3 install_test.py CMAKE SOURCE_DIR BUILD_DIR WORK_DIR

Checked: the names libhalfbyte.so shows are those that moe.h declares; it has no run path; the
projects in examples/ and the programs on docs/library.md build against it without a warning; all of
them compute the same; a wrong call ends with a sentence.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

CMAKE, SOURCE, BUILD, WORK = sys.argv[1], *map(pathlib.Path, sys.argv[2:5])
MODEL = SOURCE / "models" / "tiny-v4-nvfp4"
PREFIX = WORK / "moved"


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(project, binary):
    """Configures and builds the project against the installed package; returns its program."""
    run(CMAKE, "-S", project, "-B", binary, f"-DCMAKE_PREFIX_PATH={PREFIX}",
        "-DCMAKE_BUILD_TYPE=Release")
    run(CMAKE, "--build", binary)
    return binary / project.name


def numbers(text):
    """The computed values of an example's output, line by line."""
    return [[float(x) for x in line.split(":")[1].replace("...", "").split()]
            for line in text.splitlines()]


def documented_program(language):
    """The one program in that language on docs/library.md."""
    page = (SOURCE / "docs" / "library.md").read_text(encoding="utf-8")
    blocks = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 1, f"{len(blocks)} blocks of {language} on docs/library.md"
    return blocks[0]


class InstalledLibrary(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        shutil.rmtree(WORK, ignore_errors=True)
        run(CMAKE, "--install", BUILD, "--component", "library", "--prefix", WORK / "installed")
        (WORK / "installed").rename(PREFIX)
        cls.library = next(PREFIX.rglob("libhalfbyte.so"))
        cls.c = build(SOURCE / "examples" / "moe_c", WORK / "moe_c")
        cls.cpp = build(SOURCE / "examples" / "moe_cpp", WORK / "moe_cpp")

    def test_it_shows_the_functions_of_its_header_and_nothing_else(self):
        header = (PREFIX / "include" / "halfbyte" / "moe.h").read_text(encoding="utf-8")
        declared = set(re.findall(r"HALFBYTE_MOE_API[^;(]*?(halfbyte_moe_\w+)\(", header))
        shown = {line.split()[-1].split("@")[0]
                 for line in run("nm", "-D", "--defined-only", self.library).splitlines()
                 if " A " not in line}
        self.assertGreater(len(declared), 10)
        self.assertEqual(shown, declared)

    def test_it_has_a_version_and_no_run_path(self):
        dynamic = run("readelf", "-d", self.library)
        self.assertIn("[libhalfbyte.so.1]", dynamic)
        self.assertNotRegex(dynamic, r"\((RPATH|RUNPATH)\)")

    def test_examples_in_c_and_cpp_print_the_same(self):
        for arithmetic in ("ref", "w4a16", "w4a4", "w4a8"):
            for layer in (0, 2):
                printed = run(self.c, MODEL, layer, arithmetic)
                self.assertEqual(printed, run(self.cpp, MODEL, layer, arithmetic))
                self.assertEqual(len(printed.splitlines()), 5)

    def test_the_gpu_example_builds_and_says_what_the_library_lacks(self):
        toolkit = pathlib.Path("/usr/local/cuda/bin/nvcc")
        if shutil.which("nvcc") is None and not toolkit.exists():
            self.skipTest("no CUDA toolkit")
        program = build(SOURCE / "examples" / "moe_cuda", WORK / "moe_cuda")
        done = subprocess.run([program, MODEL], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "^moe_cuda: (options.device: .* cmake --preset cuda|.*GPU)")

    def test_the_default_arithmetic_is_near_the_exact_one(self):
        exact = numbers(run(self.c, MODEL, 0, "ref"))
        for got, expected in zip(numbers(run(self.c, MODEL)), exact, strict=True):
            scale = max(map(abs, expected))
            self.assertGreater(scale, 0)
            for a, b in zip(got, expected, strict=True):
                self.assertLess(abs(a - b), 0.01 * scale)

    def test_a_wrong_call_ends_with_a_sentence(self):
        for program in (self.c, self.cpp):
            done = subprocess.run([program, "/nowhere"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, r"^moe_\w+: .*/nowhere")

    def test_the_programs_on_the_documentation_page_run(self):
        printed = []
        for language, example, name in (("c", "moe_c", "main.c"), ("cpp", "moe_cpp", "main.cc")):
            project = WORK / "page" / example
            project.mkdir(parents=True)
            shutil.copy(SOURCE / "examples" / example / "CMakeLists.txt", project)
            (project / name).write_text(documented_program(language), encoding="utf-8")
            program = build(project, WORK / "page" / f"{example}_build")
            printed.append(run(program, MODEL))
        self.assertRegex(printed[0], r"^-?\d+\.\d+( -?\d+\.\d+){3}\n$")
        self.assertEqual(printed[0], printed[1])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
