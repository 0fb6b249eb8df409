// halfbyte._moe: halfbyte/moe.hpp for Python. Shapes and types are checked here and in the library;
// the pleasant side is halfbyte/__init__.py. Arrays come in by the buffer protocol or DLPack, from
// numpy, torch and others, without a copy if type and order fit; those of a GPU as DeviceArray,
// never copied.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <halfbyte/moe.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace nb = nanobind;
namespace moe = halfbyte::moe;

namespace {

using ReadRows = nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using WriteRows = nb::ndarray<nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T, int kDimensions>
using Array = nb::ndarray<T, nb::ndim<kDimensions>, nb::c_contig, nb::device::cpu>;

// ValueError for what the caller can mend, MemoryError; RuntimeError for the rest.
template <class Body>
auto Translated(const Body& body) {
  try {
    return body();
  } catch (const moe::Error& error) {
    if (error.code() == HALFBYTE_MOE_BAD_INPUT) throw nb::value_error(error.what());
    if (error.code() == HALFBYTE_MOE_OUT_OF_MEMORY) {
      PyErr_SetString(PyExc_MemoryError, error.what());
      throw nb::python_error();
    }
    throw;
  }
}

void Require(bool condition, const std::string& sentence) {
  if (!condition) throw nb::value_error(sentence.c_str());
}

bool IsBf16(nb::dlpack::dtype type) {
  return type.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat) &&
         type.bits == 16 && type.lanes == 1;
}

std::int32_t TypeOf(nb::dlpack::dtype type, const char* name) {
  if (type == nb::dtype<float>()) return HALFBYTE_MOE_F32_ROWS;
  Require(IsBf16(type), std::string(name) + " must be float32 or bfloat16");
  return HALFBYTE_MOE_BF16_ROWS;
}

// An array in GPU memory, which its owner keeps until the work in the stream is done.
struct DeviceArray {
  std::uintptr_t data = 0;
  std::vector<size_t> shape;
  std::string type;  // numpy's name for it: "float32"

  static DeviceArray FromDlpack(const nb::ndarray<nb::ro>& array) {
    DeviceArray view;
    view.data = reinterpret_cast<std::uintptr_t>(array.data());
    std::int64_t expected = 1;
    for (size_t d = array.ndim(); d-- > 0;) {
      Require(array.shape(d) <= 1 || array.stride(d) == expected,
              "arrays on a GPU must be contiguous");
      expected *= static_cast<std::int64_t>(array.shape(d));
    }
    for (size_t d = 0; d < array.ndim(); ++d) view.shape.push_back(array.shape(d));
    const nb::dlpack::dtype type = array.dtype();
    view.type = type == nb::dtype<float>()          ? "float32"
                : type == nb::dtype<std::int32_t>() ? "int32"
                : IsBf16(type)                      ? "bfloat16"
                                                    : "something else";
    return view;
  }

  template <class T>
  T* As(const char* name, const char* wanted, size_t dimensions) const {
    Require(type == wanted, std::string(name) + " is " + type + ", on a GPU it must be " + wanted);
    Require(shape.size() == dimensions,
            std::string(name) + " must have " + std::to_string(dimensions) + " dimensions");
    return reinterpret_cast<T*>(data);
  }
};

struct Options {
  std::string arithmetic;
  std::int32_t threads, activation_scales;
  std::optional<std::string> activation_scales_file;
  std::int32_t headroom, ranks, rank;
  std::optional<std::int32_t> gpu;

  moe::Options ForC() const {
    moe::Options options;
    options.arithmetic = arithmetic.c_str();
    options.threads = threads;
    options.activation_scales = activation_scales;
    options.activation_scales_file =
        activation_scales_file ? activation_scales_file->c_str() : nullptr;
    options.headroom = headroom == 0 ? HALFBYTE_MOE_HEADROOM_NONE : headroom;
    options.ranks = ranks;
    options.rank = rank;
    options.device = gpu ? HALFBYTE_MOE_CUDA : HALFBYTE_MOE_CPU;
    options.device_ordinal = gpu.value_or(0);
    return options;
  }
};

struct Router {
  std::int32_t score, weights;
  float scaling_factor;
  std::optional<Array<const float, 1>> bias;
  std::int64_t groups, chosen_groups;

  // `into.experts` is set.
  void AddTo(moe::Weights& into) const {
    Require(!bias || static_cast<std::int64_t>(bias->shape(0)) == into.experts,
            "router bias must be [experts]");
    into.router_score = score;
    into.router_weights = weights;
    into.routed_scaling_factor = scaling_factor;
    into.router_bias = bias ? bias->data() : nullptr;
    into.router_groups = groups;
    into.router_chosen_groups = chosen_groups;
  }
};

// The choices of `tokens` tokens: two arrays [tokens, choices].
void RequireChoices(const DeviceArray& ids, const DeviceArray& weights, size_t tokens) {
  Require(ids.shape[0] == tokens && weights.shape == ids.shape,
          "topk_ids and topk_weights must both be [tokens, choices]");
}
template <class Ids, class Weights>
void RequireChoices(const Ids& ids, const Weights& weights, size_t tokens) {
  Require(ids.shape(0) == tokens && weights.shape(0) == tokens && weights.shape(1) == ids.shape(1),
          "topk_ids and topk_weights must both be [tokens, choices]");
}

// The NVFP4 weights of one projection of all experts: codes [experts, rows, columns/2], scales
// [experts, rows, columns/16] and global scales [experts].
struct Nvfp4Experts {
  Array<const std::uint8_t, 3> codes;
  Array<const std::uint8_t, 3> scales;
  Array<const float, 1> global_scales;

  std::vector<halfbyte_moe_matrix> ForC(const char* name) const {
    const size_t experts = codes.shape(0);
    Require(scales.shape(0) == experts && global_scales.shape(0) == experts,
            std::string(name) +
                ": codes, scales and global scales are of different numbers of "
                "experts");
    const size_t data_bytes = codes.shape(1) * codes.shape(2);
    const size_t scale_bytes = scales.shape(1) * scales.shape(2);
    std::vector<halfbyte_moe_matrix> matrices;
    for (size_t e = 0; e < experts; ++e) {
      halfbyte_moe_matrix matrix{};
      matrix.data = codes.data() + e * data_bytes;
      matrix.data_bytes = data_bytes;
      matrix.scales = scales.data() + e * scale_bytes;
      matrix.scale_bytes = scale_bytes;
      matrix.format = HALFBYTE_MOE_NVFP4;
      matrix.global_scale = global_scales.data()[e];
      matrices.push_back(matrix);
    }
    return matrices;
  }
};

class Layer {
 public:
  Layer(moe::Layer layer, std::int64_t max_tokens)
      : layer_(std::move(layer)), max_tokens_(max_tokens) {
    free_.push_back(std::make_unique<moe::Workspace>(layer_, max_tokens_));
  }

  halfbyte_moe_info Info() const { return layer_.Info(); }
  halfbyte_moe_counters Counters() const { return layer_.Counters(); }

  void Run(const ReadRows& hidden, const Array<const std::int32_t, 2>& ids,
           const Array<const float, 2>& weights, const WriteRows& out) {
    const auto tokens = static_cast<std::int64_t>(hidden.shape(0));
    const auto width = static_cast<std::int64_t>(hidden.shape(1));
    const auto top_k = static_cast<std::int64_t>(ids.shape(1));
    Require(width == layer_.Info().hidden, "hidden has " + std::to_string(width) +
                                               " columns, the layer takes " +
                                               std::to_string(layer_.Info().hidden));
    RequireChoices(ids, weights, hidden.shape(0));
    Require(out.shape(0) == hidden.shape(0) && out.shape(1) == hidden.shape(1),
            "out must have the shape of hidden");
    auto run = HALFBYTE_MOE_INIT(halfbyte_moe_run_arguments);
    run.tokens = tokens;
    run.top_k = top_k;
    run.hidden = hidden.data();
    run.topk_ids = ids.data();
    run.topk_weights = weights.data();
    run.out = out.data();
    run.hidden_type = TypeOf(hidden.dtype(), "hidden");
    run.out_type = TypeOf(out.dtype(), "out");
    RunPieces(run);
  }

  // The same in GPU memory: the work goes into the stream.
  void RunInStream(const DeviceArray& hidden, const DeviceArray& ids, const DeviceArray& weights,
                   const DeviceArray& out, std::uintptr_t stream) {
    auto run = HALFBYTE_MOE_INIT(halfbyte_moe_run_arguments);
    run.hidden = hidden.As<const void>("hidden", "bfloat16", 2);
    run.topk_ids = ids.As<const std::int32_t>("topk_ids", "int32", 2);
    run.topk_weights = weights.As<const float>("topk_weights", "float32", 2);
    const bool bf16 = out.type == "bfloat16";
    run.out = out.As<void>("out", bf16 ? "bfloat16" : "float32", 2);
    const auto width = static_cast<size_t>(layer_.Info().hidden);
    Require(hidden.shape[1] == width, "hidden has " + std::to_string(hidden.shape[1]) +
                                          " columns, the layer takes " + std::to_string(width));
    RequireChoices(ids, weights, hidden.shape[0]);
    Require(out.shape == hidden.shape, "out must have the shape of hidden");
    run.tokens = static_cast<std::int64_t>(hidden.shape[0]);
    run.top_k = static_cast<std::int64_t>(ids.shape[1]);
    run.hidden_type = HALFBYTE_MOE_BF16_ROWS;
    run.out_type = bf16 ? HALFBYTE_MOE_BF16_ROWS : HALFBYTE_MOE_F32_ROWS;
    run.stream = reinterpret_cast<void*>(stream);
    RunPieces(run);
  }

  void Route(const Array<const float, 2>& logits,
             const std::optional<Array<const std::int32_t, 1>>& token_ids,
             const Array<std::int32_t, 2>& ids, const Array<float, 2>& weights) {
    const halfbyte_moe_info info = layer_.Info();
    const size_t tokens = logits.shape(0);
    Require(static_cast<std::int64_t>(logits.shape(1)) == info.experts,
            "logits must be [tokens, " + std::to_string(info.experts) + "]");
    Require(!token_ids || token_ids->shape(0) == tokens, "token_ids must be [tokens]");
    RequireChoices(ids, weights, tokens);
    Require(static_cast<std::int64_t>(ids.shape(1)) == info.top_k,
            "the router writes " + std::to_string(info.top_k) + " choices");
    const nb::gil_scoped_release no_gil;
    const Lent workspace(*this);
    layer_.Route(*workspace, static_cast<std::int64_t>(tokens), logits.data(),
                 token_ids ? token_ids->data() : nullptr, ids.data(), weights.data());
  }

  void RouteInStream(const DeviceArray& logits, const std::optional<DeviceArray>& token_ids,
                     const DeviceArray& ids, const DeviceArray& weights, std::uintptr_t stream) {
    const halfbyte_moe_info info = layer_.Info();
    const auto* const logits_data = logits.As<const float>("logits", "float32", 2);
    auto* const ids_data = ids.As<std::int32_t>("topk_ids", "int32", 2);
    auto* const weights_data = weights.As<float>("topk_weights", "float32", 2);
    const auto* const token_data =
        token_ids ? token_ids->As<const std::int32_t>("token_ids", "int32", 1) : nullptr;
    const size_t tokens = logits.shape[0];
    Require(static_cast<std::int64_t>(logits.shape[1]) == info.experts,
            "logits must be [tokens, " + std::to_string(info.experts) + "]");
    Require(!token_ids || token_ids->shape[0] == tokens, "token_ids must be [tokens]");
    RequireChoices(ids, weights, tokens);
    Require(static_cast<std::int64_t>(ids.shape[1]) == info.top_k,
            "the router writes " + std::to_string(info.top_k) + " choices");
    const nb::gil_scoped_release no_gil;
    const Lent workspace(*this);
    layer_.Route(*workspace, static_cast<std::int64_t>(tokens), logits_data, token_data, ids_data,
                 weights_data, reinterpret_cast<void*>(stream));
  }

 private:
  // A workspace for one call: threads that call at the same time each get their own.
  class Lent {
   public:
    explicit Lent(Layer& layer) : layer_(layer) {
      {
        const std::lock_guard lock(layer.mutex_);
        if (!layer.free_.empty()) {
          workspace_ = std::move(layer.free_.back());
          layer.free_.pop_back();
        }
      }
      if (!workspace_)
        workspace_ = std::make_unique<moe::Workspace>(layer.layer_, layer.max_tokens_);
    }
    ~Lent() {
      const std::lock_guard lock(layer_.mutex_);
      layer_.free_.push_back(std::move(workspace_));
    }
    Lent(const Lent&) = delete;
    Lent& operator=(const Lent&) = delete;
    moe::Workspace& operator*() const { return *workspace_; }
    moe::Workspace* operator->() const { return workspace_.get(); }

   private:
    Layer& layer_;
    std::unique_ptr<moe::Workspace> workspace_;
  };

  // As many tokens at a time as a workspace takes.
  void RunPieces(halfbyte_moe_run_arguments run) {
    const std::int64_t width = layer_.Info().hidden, tokens = run.tokens;
    const std::int64_t hidden_row = width * (run.hidden_type == HALFBYTE_MOE_F32_ROWS ? 4 : 2);
    const std::int64_t out_row = width * (run.out_type == HALFBYTE_MOE_F32_ROWS ? 4 : 2);
    const nb::gil_scoped_release no_gil;
    std::int64_t left = tokens;
    do {  // once even without tokens, so that the arguments are checked
      run.tokens = std::min(max_tokens_, left);
      RunWithWorkspace(run);
      run.hidden = static_cast<const char*>(run.hidden) + run.tokens * hidden_row;
      run.topk_ids += run.tokens * run.top_k;
      run.topk_weights += run.tokens * run.top_k;
      run.out = static_cast<char*>(run.out) + run.tokens * out_row;
      left -= run.tokens;
    } while (left > 0);
  }

  // In the first workspace that no other stream is using; a new one if all are in use.
  void RunWithWorkspace(const halfbyte_moe_run_arguments& run) {
    std::vector<std::unique_ptr<Lent>> busy;  // given back when one has been found
    for (;;) {
      auto workspace = std::make_unique<Lent>(*this);
      const int code = halfbyte_moe_run(layer_.handle(), (*workspace)->handle(), &run);
      if (code != HALFBYTE_MOE_BUSY) return moe::ThrowIfFailed(code);
      busy.push_back(std::move(workspace));
    }
  }

  moe::Layer layer_;
  const std::int64_t max_tokens_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<moe::Workspace>> free_;
};

std::unique_ptr<Layer> OpenLayer(const std::string& directory, std::int64_t layer,
                                 const Options& options, std::int64_t max_tokens) {
  return Translated([&] {
    const nb::gil_scoped_release no_gil;
    return std::make_unique<Layer>(moe::Layer::Open(directory, layer, options.ForC()), max_tokens);
  });
}

std::unique_ptr<Layer> LayerFromNvfp4(const Nvfp4Experts& gate, const Nvfp4Experts& up,
                                      const Nvfp4Experts& down, std::int64_t experts,
                                      std::int64_t top_k, float swiglu_limit, const Router& router,
                                      const Options& options, std::int64_t max_tokens) {
  const std::vector<halfbyte_moe_matrix> gates = gate.ForC("gate");
  const std::vector<halfbyte_moe_matrix> ups = up.ForC("up");
  const std::vector<halfbyte_moe_matrix> downs = down.ForC("down");
  Require(gates.size() == ups.size() && gates.size() == downs.size(),
          "gate, up and down are of different numbers of experts");
  moe::Weights weights;
  weights.experts = experts;
  weights.hidden = static_cast<std::int64_t>(gate.codes.shape(2)) * 2;
  weights.intermediate = static_cast<std::int64_t>(gate.codes.shape(1));
  weights.top_k = top_k;
  weights.matrices = gates.size();
  weights.gate = gates.data();
  weights.up = ups.data();
  weights.down = downs.data();
  weights.swiglu_limit = swiglu_limit;
  router.AddTo(weights);
  return Translated([&] {
    return std::make_unique<Layer>(moe::Layer::Create(weights, options.ForC()), max_tokens);
  });
}

nb::dict StageDict(const halfbyte_moe_stage_counters& stage) {
  nb::dict dict;
  dict["blocks"] = stage.blocks;
  dict["zero"] = stage.zero;
  dict["flushed"] = stage.flushed;
  dict["at_max"] = stage.at_max;
  dict["clipped"] = stage.clipped;
  dict["non_finite"] = stage.non_finite;
  dict["amax"] = stage.amax;
  return dict;
}

nb::dict CountersDict(const Layer& layer) {
  const halfbyte_moe_counters counters = layer.Counters();
  nb::dict dict;
  dict["gate_up"] = StageDict(counters.gate_up);
  dict["down"] = StageDict(counters.down);
  dict["routed_rows"] = counters.routed_rows;
  dict["bad_rows"] = counters.bad_rows;
  return dict;
}

nb::dict InfoDict(const Layer& layer) {
  const halfbyte_moe_info info = layer.Info();
  nb::dict dict;
  dict["experts"] = info.experts;
  dict["local_experts"] = info.local_experts;
  dict["hidden"] = info.hidden;
  dict["intermediate"] = info.intermediate;
  dict["top_k"] = info.top_k;
  dict["weight_bytes"] = info.weight_bytes;
  dict["arithmetic"] = info.arithmetic;
  dict["threads"] = info.threads;
  dict["static_scales"] = info.static_scales != 0;
  dict["routes_by_token_id"] = info.routes_by_token_id != 0;
  dict["gpu"] = info.device == HALFBYTE_MOE_CUDA ? nb::cast(info.device_ordinal) : nb::none();
  dict["device_bytes"] = info.device_bytes;
  dict["peak_device_bytes"] = info.peak_device_bytes;
  return dict;
}

}  // namespace

NB_MODULE(_moe, module) {
  nb::class_<Options>(module, "Options")
      .def(
          "__init__",
          [](Options* self, std::string arithmetic, std::int32_t threads,
             std::int32_t activation_scales, std::optional<std::string> activation_scales_file,
             std::int32_t headroom, std::int32_t ranks, std::int32_t rank,
             std::optional<std::int32_t> gpu) {
            new (self) Options{std::move(arithmetic),
                               threads,
                               activation_scales,
                               std::move(activation_scales_file),
                               headroom,
                               ranks,
                               rank,
                               gpu};
          },
          nb::arg("arithmetic"), nb::arg("threads"), nb::arg("activation_scales"),
          nb::arg("activation_scales_file").none(), nb::arg("headroom"), nb::arg("ranks"),
          nb::arg("rank"), nb::arg("gpu").none());
  nb::class_<DeviceArray>(module, "DeviceArray")
      .def("__init__",
           [](DeviceArray* self, std::uintptr_t data, std::vector<size_t> shape, std::string type) {
             new (self) DeviceArray{data, std::move(shape), std::move(type)};
           })
      .def_static("from_dlpack", &DeviceArray::FromDlpack);
  nb::class_<Router>(module, "Router")
      .def(
          "__init__",
          [](Router* self, std::int32_t score, std::int32_t weights, float scaling_factor,
             std::optional<Array<const float, 1>> bias, std::int64_t groups,
             std::int64_t chosen_groups) {
            new (self)
                Router{score, weights, scaling_factor, std::move(bias), groups, chosen_groups};
          },
          nb::arg("score"), nb::arg("weights"), nb::arg("scaling_factor"), nb::arg("bias").none(),
          nb::arg("groups"), nb::arg("chosen_groups"));
  nb::class_<Nvfp4Experts>(module, "Nvfp4Experts")
      .def("__init__",
           [](Nvfp4Experts* self, Array<const std::uint8_t, 3> codes,
              Array<const std::uint8_t, 3> scales, Array<const float, 1> global_scales) {
             new (self) Nvfp4Experts{std::move(codes), std::move(scales), std::move(global_scales)};
           });
  nb::class_<Layer>(module, "Layer")
      .def("info", &InfoDict)
      .def("counters", &CountersDict)
      .def(
          "run",
          [](Layer& layer, const ReadRows& hidden, const Array<const std::int32_t, 2>& ids,
             const Array<const float, 2>& weights,
             const WriteRows& out) { Translated([&] { layer.Run(hidden, ids, weights, out); }); },
          nb::arg("hidden"), nb::arg("topk_ids"), nb::arg("topk_weights"),
          nb::arg("out").noconvert())
      .def(
          "route",
          [](Layer& layer, const Array<const float, 2>& logits,
             const std::optional<Array<const std::int32_t, 1>>& token_ids,
             const Array<std::int32_t, 2>& ids, const Array<float, 2>& weights) {
            Translated([&] { layer.Route(logits, token_ids, ids, weights); });
          },
          nb::arg("logits"), nb::arg("token_ids").none(), nb::arg("topk_ids").noconvert(),
          nb::arg("topk_weights").noconvert())
      .def("run_in_stream",
           [](Layer& layer, const DeviceArray& hidden, const DeviceArray& ids,
              const DeviceArray& weights, const DeviceArray& out, std::uintptr_t stream) {
             Translated([&] { layer.RunInStream(hidden, ids, weights, out, stream); });
           })
      .def(
          "route_in_stream",
          [](Layer& layer, const DeviceArray& logits, const std::optional<DeviceArray>& token_ids,
             const DeviceArray& ids, const DeviceArray& weights, std::uintptr_t stream) {
            Translated([&] { layer.RouteInStream(logits, token_ids, ids, weights, stream); });
          },
          nb::arg("logits"), nb::arg("token_ids").none(), nb::arg("topk_ids"),
          nb::arg("topk_weights"), nb::arg("stream"));
  module.def("open_layer", &OpenLayer);
  // The layer borrows the arrays of its three projections.
  module.def("layer_from_nvfp4", &LayerFromNvfp4, nb::keep_alive<0, 1>(), nb::keep_alive<0, 2>(),
             nb::keep_alive<0, 3>());
}
