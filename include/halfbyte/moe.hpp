// halfbyte/moe.h for C++17: owners that clean up, and exceptions instead of return codes.
// Everything else, shapes, units, threads and versions, is as described there.
//
//   halfbyte::moe::Layer layer = halfbyte::moe::Layer::Open("models/tiny-v4-nvfp4", 0);
//   halfbyte::moe::Workspace workspace(layer, 512);
//   layer.Run(workspace, {tokens, top_k, ids, weights}, hidden, out);
//
// This header alone throws, inside the program that includes it; nothing is thrown by the library.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "halfbyte/moe.h"

namespace halfbyte {
namespace moe {

// A call that failed: what() is halfbyte_moe_last_error(), code() a HALFBYTE_MOE_... number.
class Error : public std::runtime_error {
 public:
  Error(int code, const char* text) : std::runtime_error(text), code_(code) {}
  int code() const noexcept { return code_; }

 private:
  int code_;
};

inline void ThrowIfFailed(int code) {
  if (code != HALFBYTE_MOE_OK) throw Error(code, halfbyte_moe_last_error());
}

// The C structs with their sizes set and everything else zero.
struct Options : halfbyte_moe_options {
  Options() : halfbyte_moe_options(HALFBYTE_MOE_INIT(halfbyte_moe_options)) {}
};
struct Weights : halfbyte_moe_weights {
  Weights() : halfbyte_moe_weights(HALFBYTE_MOE_INIT(halfbyte_moe_weights)) {}
};

// bf16 numbers as their bits.
struct Bf16 {
  std::uint16_t bits;
};
static_assert(sizeof(Bf16) == 2, "rows of bf16 have no gaps");

template <class T>
struct RowType;
template <>
struct RowType<float> {
  static constexpr std::int32_t value = HALFBYTE_MOE_F32_ROWS;
};
template <>
struct RowType<Bf16> {
  static constexpr std::int32_t value = HALFBYTE_MOE_BF16_ROWS;
};

// The choices of `tokens` tokens; both arrays are [tokens, top_k].
struct Choices {
  std::int64_t tokens;
  std::int64_t top_k;
  const std::int32_t* ids;
  const float* weights;
};

class Workspace;

class Layer {
 public:
  static Layer Open(const std::string& directory, std::int64_t layer,
                    const Options& options = Options()) {
    halfbyte_moe_layer* handle = nullptr;
    ThrowIfFailed(halfbyte_moe_layer_open(directory.c_str(), layer, &options, &handle));
    return Layer(handle);
  }
  // The bytes of the matrices must outlive the layer.
  static Layer Create(const Weights& weights, const Options& options = Options()) {
    halfbyte_moe_layer* handle = nullptr;
    ThrowIfFailed(halfbyte_moe_layer_create(&weights, &options, &handle));
    return Layer(handle);
  }

  halfbyte_moe_info Info() const {
    auto info = HALFBYTE_MOE_INIT(halfbyte_moe_info);
    ThrowIfFailed(halfbyte_moe_layer_describe(handle_.get(), &info));
    return info;
  }
  halfbyte_moe_counters Counters() const {
    auto counters = HALFBYTE_MOE_INIT(halfbyte_moe_counters);
    ThrowIfFailed(halfbyte_moe_read_counters(handle_.get(), &counters));
    return counters;
  }
  std::uint64_t WorkspaceBytes(std::int64_t max_tokens) const {
    std::uint64_t bytes = 0;
    ThrowIfFailed(halfbyte_moe_workspace_bytes(handle_.get(), max_tokens, &bytes));
    return bytes;
  }

  // hidden, out: [tokens, hidden] of float or Bf16. stream: of a layer on a GPU.
  template <class In, class Out>
  void Run(Workspace& workspace, const Choices& choices, const In* hidden, Out* out,
           void* stream = nullptr) const;

  // logits [tokens, experts] -> ids, weights [tokens, top_k]. token_ids [tokens] for layers that
  // route by token id, else nullptr.
  void Route(Workspace& workspace, std::int64_t tokens, const float* logits,
             const std::int32_t* token_ids, std::int32_t* ids, float* weights,
             void* stream = nullptr) const;

  const halfbyte_moe_layer* handle() const noexcept { return handle_.get(); }

 private:
  explicit Layer(halfbyte_moe_layer* handle) : handle_(handle) {}

  struct Destroy {
    void operator()(halfbyte_moe_layer* layer) const { halfbyte_moe_layer_destroy(layer); }
  };
  std::unique_ptr<halfbyte_moe_layer, Destroy> handle_;
};

class Workspace {
 public:
  Workspace(const Layer& layer, std::int64_t max_tokens) {
    halfbyte_moe_workspace* handle = nullptr;
    ThrowIfFailed(halfbyte_moe_workspace_create(layer.handle(), max_tokens, &handle));
    handle_.reset(handle);
  }

  halfbyte_moe_workspace* handle() const noexcept { return handle_.get(); }

 private:
  struct Destroy {
    void operator()(halfbyte_moe_workspace* workspace) const {
      halfbyte_moe_workspace_destroy(workspace);
    }
  };
  std::unique_ptr<halfbyte_moe_workspace, Destroy> handle_;
};

template <class In, class Out>
void Layer::Run(Workspace& workspace, const Choices& choices, const In* hidden, Out* out,
                void* stream) const {
  auto arguments = HALFBYTE_MOE_INIT(halfbyte_moe_run_arguments);
  arguments.tokens = choices.tokens;
  arguments.top_k = choices.top_k;
  arguments.hidden = hidden;
  arguments.topk_ids = choices.ids;
  arguments.topk_weights = choices.weights;
  arguments.out = out;
  arguments.hidden_type = RowType<In>::value;
  arguments.out_type = RowType<Out>::value;
  arguments.stream = stream;
  ThrowIfFailed(halfbyte_moe_run(handle_.get(), workspace.handle(), &arguments));
}

inline void Layer::Route(Workspace& workspace, std::int64_t tokens, const float* logits,
                         const std::int32_t* token_ids, std::int32_t* ids, float* weights,
                         void* stream) const {
  auto arguments = HALFBYTE_MOE_INIT(halfbyte_moe_route_arguments);
  arguments.tokens = tokens;
  arguments.logits = logits;
  arguments.token_ids = token_ids;
  arguments.topk_ids = ids;
  arguments.topk_weights = weights;
  arguments.stream = stream;
  ThrowIfFailed(halfbyte_moe_route(handle_.get(), workspace.handle(), &arguments));
}

}  // namespace moe
}  // namespace halfbyte
