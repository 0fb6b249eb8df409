"""Shows that rooms.py, style.py and behaviours.py can fail.

Plants each fault in a small tree and expects it.
"""
import pathlib
import tempfile
import unittest

import behaviours
import rooms
import style

CLEAN = {
    "src/CMakeLists.txt": "add_subdirectory(low)\nadd_subdirectory(high)\n",
    "src/low/CMakeLists.txt": "halfbyte_library(low)\n",
    "src/low/low.h": "#pragma once\n",
    "src/high/CMakeLists.txt":
        "halfbyte_library(high SOURCES high.cc DEPS low fmt::fmt)\n"
        "halfbyte_test(high_test SOURCES high_test.cc DEPS high)\n",
    "src/high/high.h": '#pragma once\n#include "low/low.h"\n',
    "src/high/high.cc": '#include "high/high.h"\n#include <vector>\n',
    "src/high/high_test.cc": '#include "high/high.h"\n#include "low/low.h"\n',
}


class PlantedFault(unittest.TestCase):
    def faults(self, checker, files):
        """The faults of CLEAN with some files added or replaced."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {**CLEAN, **files}.items():
                path = pathlib.Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            return checker.check(folder)

    def expect(self, checker, files, pattern):
        found = self.faults(checker, files)
        self.assertEqual(len(found), 1, found)
        self.assertRegex(found[0], pattern)

    def test_a_clean_tree_has_none(self):
        self.assertEqual(self.faults(rooms, {}), [])
        self.assertEqual(self.faults(style, {}), [])

    def test_a_behaviour_without_row_test_or_reason(self):
        rows = {n: "| R%d | x | `Suite.Name` |" % n for n in range(1, behaviours.COUNT + 1)}
        test = {"src/low/low_test.cc": "TEST(Suite, Name) {}\n"}
        for row, pattern in ((rows[7], None), ("", "R7: 0 rows"),
                             ("| R7 | x | `Suite.Other` |", "R7: there is no test Suite.Other"),
                             ("| R7 | x | somehow |", "R7: neither"),
                             ("| R7 | x | GPU: there is none |", None)):
            table = "\n".join({**rows, 7: row}.values()) + "\n"
            with self.subTest(row=row):
                files = {**test, "docs/moe-behaviours.md": table}
                if pattern is None:
                    self.assertEqual(self.faults(behaviours, files), [])
                else:
                    self.expect(behaviours, files, pattern)

    def test_include_of_a_room_below(self):
        self.expect(rooms, {"src/low/low.h": '#include "high/high.h"\n'},
                    "src/low/low.h:1: room 'low' stands above 'high'")

    def test_include_that_the_library_does_not_link(self):
        self.expect(rooms, {
            "src/high/CMakeLists.txt":
                "halfbyte_library(high SOURCES high.cc)\n"
                "halfbyte_test(high_test SOURCES high_test.cc DEPS high low)\n"},
            "src/high/high.h:2: .*high does not link low")

    def test_include_that_the_test_does_not_link(self):
        self.expect(rooms, {
            "tests/CMakeLists.txt": "halfbyte_test(t SOURCES t.cc DEPS low)",
            "tests/t.cc": '#include "high/high.h"\n'},
            "tests/t.cc:1: .*t does not link high")

    def test_shared_header_of_a_room_that_is_not_linked(self):
        files = {
            "src/CMakeLists.txt": CLEAN["src/CMakeLists.txt"] + "add_subdirectory(top)\n",
            "src/low/CMakeLists.txt": "add_subdirectory(op)\n",
            "src/low/op/CMakeLists.txt": "halfbyte_library(low)\n",
            "src/low/op/op.h": '#pragma once\n#include "low/low.h"\n',
            "src/high/high.h": '#pragma once\n#include "low/op/op.h"\n#include "low/low.h"\n',
            "src/top/CMakeLists.txt": "halfbyte_library(top DEPS high)\n",
            "src/top/top.h": '#pragma once\n#include "high/high.h"\n'}
        self.assertEqual(self.faults(rooms, files), [])
        files["src/top/top.h"] += '#include "low/low.h"\n'
        self.expect(rooms, files, "src/top/top.h:3: .*top links nothing of room 'low'")

    def test_link_without_an_include(self):
        self.expect(rooms, {"src/high/high.h": "#pragma once\n"}, "links low but includes nothing")

    def test_room_that_reaches_one_it_must_not_know(self):
        self.expect(rooms, {
            "src/CMakeLists.txt": "add_subdirectory(model)\nadd_subdirectory(low)\n"
                                  "add_subdirectory(high)\nadd_subdirectory(engine)\n",
            "src/model/CMakeLists.txt": "halfbyte_library(model)\n",
            "src/model/model.h": "#pragma once\n",
            "src/low/CMakeLists.txt": "halfbyte_library(low DEPS model)\n",
            "src/low/low.h": '#pragma once\n#include "model/model.h"\n',
            "src/engine/CMakeLists.txt": "halfbyte_library(engine DEPS high)\n",
            "src/engine/engine.h": '#pragma once\n#include "high/high.h"\n'},
            "src/engine/CMakeLists.txt: engine links 'model'")

    def test_include_that_is_not_a_path_from_src(self):
        self.expect(rooms, {"src/high/high.cc": '#include "high.h"\n'},
                    'high.cc:1: "high.h" is not a file under src/')

    def test_source_that_nothing_builds(self):
        self.expect(rooms, {"src/low/lost.cc": ""}, "src/low/lost.cc: no CMakeLists.txt builds")

    def test_room_that_is_not_listed(self):
        self.expect(rooms, {"src/attic/a.h": ""}, "room 'attic' is not listed")

    def test_long_file(self):
        text = "int x;\n" * 701
        self.expect(style, {"src/low/long.cc": text}, "701 lines")
        reason = "// This file is long because the table is one.\n"
        self.assertEqual(self.faults(style, {"src/low/long.cc": reason + text}), [])

    def test_long_line(self):
        self.expect(style, {"src/low/wide.cc": "// " + "\u00d7" * 98 + "\n"}, "wide.cc:1: 101 col")
        self.assertEqual(self.faults(style, {"src/low/wide.cc": "// " + "\u00d7" * 97}), [])

    def test_unfinished_work(self):
        for word in ("TO" + "DO", "FIX" + "ME"):
            self.expect(style, {"src/low/a.cc": f"// {word}(me): later\n"}, "unfinished work")

    def test_a_line_of_markdown_that_could_be_broken(self):
        wide = "word " * 21
        self.expect(style, {"docs/a.md": wide + "\n"}, "docs/a.md:1: 105 columns")
        for text in (f"| {wide}|\n", f"```\n{wide}\n```\n", "- " + "x" * 120 + "\n"):
            self.assertEqual(self.faults(style, {"docs/a.md": text}), [])

    def test_header_without_pragma_once(self):
        self.expect(style, {"src/low/low.h": "int x;\n"}, "low.h: a header starts with")

    def test_name_that_says_nothing(self):
        self.expect(style, {"src/low/utils.cc": ""}, "utils.cc: name it after what it holds")


if __name__ == "__main__":
    unittest.main()
