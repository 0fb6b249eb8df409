// What the tests of the C interface share: a random layer of moe_test_layer.h, seen through it.
#pragma once

#include <halfbyte/moe.h>

#include <memory>
#include <string>
#include <vector>

#include "moe/moe_test_layer.h"

namespace halfbyte {

struct DestroyLayer {
  void operator()(halfbyte_moe_layer* layer) const { halfbyte_moe_layer_destroy(layer); }
};
struct DestroyWorkspace {
  void operator()(halfbyte_moe_workspace* w) const { halfbyte_moe_workspace_destroy(w); }
};
using LayerHandle = std::unique_ptr<halfbyte_moe_layer, DestroyLayer>;
using WorkspaceHandle = std::unique_ptr<halfbyte_moe_workspace, DestroyWorkspace>;

inline constexpr TestShape kCapiShape{
    .hidden = 64, .intermediate = 32, .experts = 6, .tokens = 5, .top_k = 2};

// The tensors of a TestLayer as the C interface takes them.
struct CapiWeights {
  TestLayer source;
  std::vector<halfbyte_moe_matrix> gate, up, down;
  halfbyte_moe_weights weights = HALFBYTE_MOE_INIT(halfbyte_moe_weights);

  explicit CapiWeights(WeightFormat format, const TestShape& shape = kCapiShape, uint32_t seed = 1);
  // The layer; a failure fails the test and gives null.
  LayerHandle Create(const halfbyte_moe_options* options = nullptr) const;
};

// Failures fail the test and give null.
LayerHandle OpenTinyLayer(int64_t layer, const halfbyte_moe_options* options = nullptr);
WorkspaceHandle CreateWorkspace(const LayerHandle& layer, int64_t max_tokens = 16);

halfbyte_moe_options OptionsFor(const char* arithmetic, int32_t threads = 2);

// A file of measured activation scales for the bundled model, deleted with this.
struct ScalesFile {
  std::string path;

  explicit ScalesFile(int64_t experts = 32);
  ~ScalesFile();
  ScalesFile(const ScalesFile&) = delete;
  ScalesFile& operator=(const ScalesFile&) = delete;
  static float GateUp(int64_t layer) { return 0.001f * static_cast<float>(layer + 1); }
  static float Down(int64_t layer) { return 0.003f * static_cast<float>(layer + 1); }
};

// Arguments for `input`, fp32 rows in and out.
halfbyte_moe_run_arguments RunArguments(const TestInput& input, std::vector<float>& out);

// The rows that a run gives, which must succeed.
std::vector<float> RunCapi(const LayerHandle& layer, const WorkspaceHandle& workspace,
                           const TestInput& input);

}  // namespace halfbyte
