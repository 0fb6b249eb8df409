"""Tests of mutant.py: what it must not take for a caught mutant."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import mutant  # noqa: E402

EDIT = "A fault.\n@@ replace\nreturn 1;\n@@ by\nreturn 2;\n@@ end\n"
FAILED = "echo '[  FAILED  ] Suite.Name (1 ms)'; exit 1"


class Mutants(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)

    def file(self, name, text):
        path = self.root / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o700)
        return path

    def judge(self, program, edit=EDIT, source="int f() {\nreturn 1;\n}\n"):
        return mutant.check(self.file("x.mutant", edit), self.file("x.cc", source),
                            self.file("program", f"#!/bin/sh\n{program}\n"), "*")

    def test_a_failed_assertion_is_a_catch(self):
        self.assertIsNone(self.judge(FAILED))

    def test_what_passes_has_survived(self):
        self.assertIn("SURVIVED", self.judge("exit 0"))

    def test_a_crash_proves_nothing(self):
        self.assertIn("crashed", self.judge("kill -SEGV $$"))
        self.assertIn("crashed", self.judge("exit 1"))

    def test_a_filter_without_tests_is_a_mistake(self):
        self.assertIn("no test", self.judge("echo '[==========] Running 0 tests'"))

    def test_an_edit_out_of_step_with_the_source_is_a_failure_but_breaks_no_build(self):
        for source in ("return 3;\n", "return 1;\nreturn 1;\n"):
            self.assertIn("in step", self.judge(FAILED, source=source))
            mutant.write(self.root / "x.mutant", self.root / "x.cc", self.root / "copy.cc")
            self.assertEqual((self.root / "copy.cc").read_text(), source)
        self.assertIn("no edit", self.judge(FAILED, edit="A fault.\n"))

    def test_the_copy_has_the_fault(self):
        self.judge("exit 0")
        mutant.write(self.root / "x.mutant", self.root / "x.cc", self.root / "copy.cc")
        self.assertEqual((self.root / "copy.cc").read_text(), "int f() {\nreturn 2;\n}\n")


if __name__ == "__main__":
    unittest.main()
