// The same as ../moe_c/main.c with the C++ header: prints the same lines.
//
//   moe_cpp MODEL_DIR [LAYER [ARITHMETIC]]     moe_cpp models/tiny-v4-nvfp4 0 w4a16
#include <cstdio>
#include <cstdlib>
#include <halfbyte/moe.hpp>
#include <vector>

namespace {

constexpr int kTokens = 5;

void RunFiveTokens(int argc, char** argv) {
  halfbyte::moe::Options options;
  if (argc > 3) options.arithmetic = argv[3];
  const auto layer =
      halfbyte::moe::Layer::Open(argv[1], argc > 2 ? std::atoi(argv[2]) : 0, options);
  halfbyte::moe::Workspace workspace(layer, kTokens);
  const halfbyte_moe_info info = layer.Info();

  const auto top_k = static_cast<size_t>(info.top_k);
  std::vector<float> hidden(kTokens * static_cast<size_t>(info.hidden));
  std::vector<float> logits(kTokens * static_cast<size_t>(info.experts));
  for (size_t i = 0; i < hidden.size(); ++i) hidden[i] = static_cast<float>(i % 31) / 16 - 1;
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i * 7 % 23) / 8;
  const std::vector<std::int32_t> token_ids = {0, 1, 2, 3, 4};

  std::vector<std::int32_t> ids(kTokens * top_k);
  std::vector<float> weights(ids.size());
  std::vector<float> out(hidden.size());
  layer.Route(workspace, kTokens, logits.data(), token_ids.data(), ids.data(), weights.data());
  layer.Run(workspace, {kTokens, info.top_k, ids.data(), weights.data()}, hidden.data(),
            out.data());

  for (size_t t = 0; t < kTokens; ++t) {
    std::printf("token %d, experts", static_cast<int>(t));
    for (size_t j = 0; j < top_k; ++j) std::printf(" %d", static_cast<int>(ids[t * top_k + j]));
    std::printf(":");
    for (size_t n = 0; n < 4; ++n) {
      std::printf(" %.6g", static_cast<double>(out[t * static_cast<size_t>(info.hidden) + n]));
    }
    std::printf(" ...\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: moe_cpp MODEL_DIR [LAYER [ARITHMETIC]]\n");
    return 2;
  }
  try {
    RunFiveTokens(argc, argv);
  } catch (const halfbyte::moe::Error& error) {
    std::fprintf(stderr, "moe_cpp: %s\n", error.what());
    return 1;
  }
  return 0;
}
