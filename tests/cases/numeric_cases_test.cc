// Runs every entry of tests/data/cases/numeric.json.
#include "cases/numeric_cases.h"

#include <algorithm>
#include <set>

namespace halfbyte {
namespace {

// Operations of code that halfbyte does not have: nothing here could give the wrong number.
const std::set<std::string>& NotInHalfbyte() {
  static const std::set<std::string> ops = {
      "compressed_gather_chunks",  // attention reads pages where they lie; there is no gather
                                   // buffer
  };
  return ops;
}

const CaseHandlers& Handlers() {
  static const CaseHandlers handlers = [] {
    CaseHandlers all;
    AddFormatCases(all);
    AddLayoutCases(all);
    AddMoeCases(all);
    AddModelCases(all);
    return all;
  }();
  return handlers;
}

const Json& File() {
  static const Json file = [] {
    auto json = ReadJsonFile(HALFBYTE_SOURCE_DIR "/tests/data/cases/numeric.json");
    return json.has_value() ? *json : Json::object({{"cases", Json::array()}});
  }();
  return file;
}

std::vector<std::string> Operations() {
  std::set<std::string> ops;
  for (const Json& entry : File()["cases"]) ops.insert(entry["op"].get<std::string>());
  return {ops.begin(), ops.end()};
}

TEST(NumericCases, EveryOperationOfTheFileIsHandledOrKnownToBeAbsent) {
  EXPECT_EQ(File()["cases"].size(), 323u);
  std::set<std::string> handled_or_absent = NotInHalfbyte();
  for (const auto& [op, handler] : Handlers()) {
    EXPECT_TRUE(handled_or_absent.insert(op).second) << op << " has a handler: strike it off";
  }
  const std::vector<std::string> in_file = Operations();
  EXPECT_EQ(in_file, std::vector(handled_or_absent.begin(), handled_or_absent.end()));
}

class NumericCase : public testing::TestWithParam<std::string> {};

TEST_P(NumericCase, Holds) {
  const auto handler = Handlers().find(GetParam());
  if (handler == Handlers().end()) GTEST_SKIP() << GetParam() << " is not in halfbyte";
  for (const Json& entry : File()["cases"]) {
    if (entry["op"] != GetParam()) continue;
    SCOPED_TRACE(entry["id"].get<std::string>());
    handler->second(entry["inputs"], entry["expected"]);
  }
}

INSTANTIATE_TEST_SUITE_P(File, NumericCase, testing::ValuesIn(Operations()),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace halfbyte
