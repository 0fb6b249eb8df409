// halfbyte: one mixture-of-experts layer on the CPU or on an NVIDIA GPU of the Hopper family, as a
// C library (C99 and later).
//
//   halfbyte_moe_layer* layer;
//   halfbyte_moe_workspace* workspace;
//   halfbyte_moe_layer_open("models/tiny-v4-nvfp4", 0, NULL, &layer);
//   halfbyte_moe_workspace_create(layer, 512, &workspace);
//   halfbyte_moe_run_arguments run = HALFBYTE_MOE_INIT(halfbyte_moe_run_arguments);
//   ... fill run ...
//   halfbyte_moe_run(layer, workspace, &run);
//
// The layer computes, for every token t, the sum over its choices j of
//
//   topk_weights[t, j] * down(swiglu(gate(hidden[t]), up(hidden[t])))   of expert topk_ids[t, j]
//
// The router's product (hidden -> logits), the shared expert and the sum over ranks belong to the
// caller. A token's result depends on its own row and choices only: not on the other tokens, the
// number of threads or the size of the workspace.
//
// Matrices are row-major without gaps; [rows, columns] gives their shape. bf16 numbers are the
// upper 16 bits of an fp32.
//
// Errors. Every function that can fail returns one of the HALFBYTE_MOE_... codes below. The text of
// a thread's last failure stays in halfbyte_moe_last_error() until its next one. After a failure
// nothing has been computed, and results that the call would have returned are NULL or untouched.
//
// On a GPU (options.device) the pointers of a call are memory of that GPU, and the call only puts
// work into its stream: it allocates nothing, waits for nothing and reads nothing back, so it can
// be captured into a graph and replayed with other numbers in the same buffers. Results are
// complete when the stream is. Weights are taken from host memory in any case and copied; their
// bytes are free when the layer has been made. The calling thread's current device stays what it
// was.
//
// Threads. Any number of threads may use one layer at the same time, each with a workspace of its
// own. A workspace serves one call at a time; a second one at the same time is refused
// (HALFBYTE_MOE_BUSY), never mixed up. On a GPU so is a call in another stream while work of an
// earlier call is under way; replays of captured calls are seen by nobody, their order is yours.
// Destroy a layer or a workspace when no call, stream or graph uses it.
//
// Versions. Each struct begins with its own size; HALFBYTE_MOE_INIT sets it and makes everything
// else zero, and zero is each field's default. Later versions of the library only add fields at the
// end, so that programs built against an earlier header keep working; a program built against a
// later header is refused if it uses a field that this library does not know.
#pragma once

#include <stdint.h>

// The version of this header. Rises when something is added; libhalfbyte.so's own number
// (SOVERSION) rises when something old stops working.
//   2: activation_scales_file in options; router groups in weights
//   3: GPUs: device in options and info, stream in the arguments of run and route
//   4: HALFBYTE_MOE_DEVICE_FAILED; memory of a GPU that does not suffice is
//      HALFBYTE_MOE_OUT_OF_MEMORY; both were HALFBYTE_MOE_BAD_INPUT
#define HALFBYTE_MOE_ABI_VERSION 4

#if defined(__GNUC__)
#define HALFBYTE_MOE_API __attribute__((visibility("default")))
#else
#define HALFBYTE_MOE_API
#endif

// halfbyte_moe_options options = HALFBYTE_MOE_INIT(halfbyte_moe_options);
#ifdef __cplusplus
template <class T>
inline T halfbyte_moe_init() {
  T value{};
  value.struct_size = sizeof(T);
  return value;
}
#define HALFBYTE_MOE_INIT(type) halfbyte_moe_init<type>()
extern "C" {
#else
#define HALFBYTE_MOE_INIT(type) ((type){.struct_size = sizeof(type)})
#endif

// What the functions return.
enum {
  HALFBYTE_MOE_OK = 0,
  HALFBYTE_MOE_BAD_INPUT = 1,      // an argument, a checkpoint, or a GPU that is not there or of
                                   // another kind; the text says which and why
  HALFBYTE_MOE_BUSY = 2,           // another call is using the workspace
  HALFBYTE_MOE_OUT_OF_MEMORY = 3,  // of this machine, or of the GPU; the text has the numbers
  HALFBYTE_MOE_INTERNAL = 4,       // a fault of the library
  // Since version 4. The GPU or its driver failed, in this call or in work begun before it by
  // anybody in this process (a kernel's fault comes out of a later call): no argument's fault.
  // After a kernel was killed nothing works on a GPU until the process is started again; with
  // HALFBYTE_CUDA_CHECK=1 in the environment the call that launches the kernel waits for it and
  // names it.
  HALFBYTE_MOE_DEVICE_FAILED = 5
};

// HALFBYTE_MOE_ABI_VERSION of the library that is running.
HALFBYTE_MOE_API uint32_t halfbyte_moe_abi_version(void);

// One sentence about the last call of this thread that failed; "" if none did. Never NULL; valid
// until the thread's next failing call. At most 4095 bytes.
HALFBYTE_MOE_API const char* halfbyte_moe_last_error(void);

typedef struct halfbyte_moe_layer halfbyte_moe_layer;
typedef struct halfbyte_moe_workspace halfbyte_moe_workspace;

// ---- Layers ----------------------------------------------------------------------------------

// Where a layer computes.
enum {
  HALFBYTE_MOE_CPU = 0,
  // An H100 or H200 (compute capability 9.0), "w4a16" and "w4a4", NVFP4 or MXFP4 weights, bf16
  // hidden rows. Only in libraries built with CUDA (docs/cuda.md); others refuse it.
  HALFBYTE_MOE_CUDA = 1
};

// Where the scales of 4-bit activations come from ("w4a4" only).
enum {
  HALFBYTE_MOE_SCALES_AUTO = 0,      // static if the weights come with input scales (or a file is
                                     // given), else per token
  HALFBYTE_MOE_SCALES_STATIC = 1,    // static; an error if an input scale is missing
  HALFBYTE_MOE_SCALES_PER_TOKEN = 2  // largest element of each row / 2688
};

// Headroom of static scales: they are multiplied by 2^headroom.
enum {
  HALFBYTE_MOE_HEADROOM_DEFAULT = 0,  // 5
  HALFBYTE_MOE_HEADROOM_NONE = -1     // 0; other values, 1 to 6, stand for themselves
};

typedef struct halfbyte_moe_options {
  uint64_t struct_size;
  // "w4a16" (NULL: this): activations as given (bf16; those below 1/127 of the largest of their 16
  // lose bits before 4-bit weights), exact weights, fp32 sums. "w4a4": activations
  // quantized to NVFP4 before both products; NVFP4 and MXFP4 weights only. "w4a8": activations
  // quantized to int8, a scale for every 16; the same weights. "ref": as w4a16 with fp64 sums,
  // slow, the judge.
  const char* arithmetic;
  int32_t threads;    // of each workspace, the caller's included; 0: the processors there are
  int32_t keep_fp32;  // nonzero: the activation before `down` is not rounded to bf16
  int32_t activation_scales;  // HALFBYTE_MOE_SCALES_...
  int32_t headroom;           // HALFBYTE_MOE_HEADROOM_... or 1..6
  // Expert parallelism: of `ranks` processes this is number `rank`. It loads its own, contiguous
  // share of the experts, takes global ids, and computes a partial sum. 0 ranks: all here.
  int32_t ranks;
  int32_t rank;
  // Since version 2. Not NULL: "w4a4" runs with the static scales of this file, which `halfbyte
  // calibrate` measured on the same model; headroom comes on top. Only for halfbyte_moe_layer_open,
  // with HALFBYTE_MOE_SCALES_AUTO. Read by the call that takes the options.
  const char* activation_scales_file;
  // Since version 3.
  int32_t device;          // HALFBYTE_MOE_CPU or HALFBYTE_MOE_CUDA
  int32_t device_ordinal;  // which GPU, from 0, as cudaSetDevice counts
} halfbyte_moe_options;

// Layer `layer` (from 0) of the checkpoint in `directory`, in any format that `halfbyte inspect`
// knows, with its routing bias or table. The files stay mapped while the layer lives; do not change
// them. options may be NULL. *out is the caller's, see halfbyte_moe_layer_destroy.
HALFBYTE_MOE_API int halfbyte_moe_layer_open(const char* directory, int64_t layer,
                                             const halfbyte_moe_options* options,
                                             halfbyte_moe_layer** out);

enum {
  HALFBYTE_MOE_NVFP4 = 1,  // E2M1 codes, low nibble = even column; scales E4M3 [rows, columns/16]
  HALFBYTE_MOE_MXFP4 = 2,  // the same codes; scales E8M0 [rows, columns/32]
  HALFBYTE_MOE_BF16 = 3,   // no scales
  HALFBYTE_MOE_FP8 = 4     // E4M3; scales [ceil(rows/block_rows), ceil(columns/block_columns)]
};

enum { HALFBYTE_MOE_SCALE_F32 = 0, HALFBYTE_MOE_SCALE_BF16 = 1, HALFBYTE_MOE_SCALE_E8M0 = 2 };

// One weight matrix. Its shape follows from the layer; `columns` is always the logical number,
// never that of packed bytes. Bytes may lie at any address.
typedef struct halfbyte_moe_matrix {
  const void* data;
  uint64_t data_bytes;   // 4-bit formats: rows * columns / 2; FP8: rows * columns; BF16: twice that
  const void* scales;    // linear (row-major), as checkpoints store them; NULL for BF16
  uint64_t scale_bytes;  // of the shape given above
  int32_t format;        // HALFBYTE_MOE_NVFP4, ...
  float global_scale;    // NVFP4: the multiplier, value = code * scale * global_scale
  int32_t scale_type;    // FP8: HALFBYTE_MOE_SCALE_...
  int32_t block_rows;    // FP8
  int32_t block_columns;  // FP8
  int32_t reserved;       // 0
} halfbyte_moe_matrix;

// How logits become scores, in halfbyte_moe_route.
enum {
  HALFBYTE_MOE_SQRT_SOFTPLUS = 0,
  HALFBYTE_MOE_SIGMOID = 1,
  HALFBYTE_MOE_SOFTMAX = 2,
  HALFBYTE_MOE_IDENTITY = 3
};

// How the scores of the chosen experts become weights.
enum {
  HALFBYTE_MOE_DIVIDE_BY_SUM = 0,
  HALFBYTE_MOE_KEEP_SCORES = 1,
  HALFBYTE_MOE_SOFTMAX_OF_CHOSEN = 2
};

// A layer from tensors in host memory. The matrices' bytes are borrowed: they must stay as they are
// until the layer is destroyed (on a GPU: until it is made). Everything else is copied.
typedef struct halfbyte_moe_weights {
  uint64_t struct_size;
  int64_t experts;       // of the whole layer
  int64_t hidden;        // a multiple of 16
  int64_t intermediate;  // a multiple of 16
  int64_t top_k;         // the most choices per token, 1..experts
  // One matrix per expert of this rank (all of them unless options say otherwise), by rising id.
  uint64_t matrices;                // how many each of the three lists has
  const halfbyte_moe_matrix* gate;  // [intermediate, hidden] each
  const halfbyte_moe_matrix* up;    // [intermediate, hidden]
  const halfbyte_moe_matrix* down;  // [hidden, intermediate]

  // gate is clamped from above and up on both sides before the activation; 0: no clamp.
  float swiglu_limit;
  // Nonzero: the routing weight multiplies what comes out of `down`, not what goes in.
  int32_t weight_after_down;
  // The largest input scale (amax / 2688) of all experts, before headroom; both 0: none.
  float gate_up_input_scale;
  float down_input_scale;

  // For halfbyte_moe_route only.
  int32_t router_score;         // HALFBYTE_MOE_SQRT_SOFTPLUS, ...
  int32_t router_weights;       // HALFBYTE_MOE_DIVIDE_BY_SUM, ...
  float routed_scaling_factor;  // of the weights; 0: 1
  int32_t reserved;             // 0
  const float* router_bias;     // [experts], decides the selection only; NULL: none
  // Since version 2. The experts are router_groups equal consecutive groups, and those of the
  // router_chosen_groups best groups take part in the selection (DeepSeek-V3: 8 and 4); a group is
  // as good as the sum of its two best scores, bias included. Both 0: no groups. top_k must not
  // exceed the experts of the chosen groups.
  int64_t router_groups;
  int64_t router_chosen_groups;
} halfbyte_moe_weights;

HALFBYTE_MOE_API int halfbyte_moe_layer_create(const halfbyte_moe_weights* weights,
                                               const halfbyte_moe_options* options,
                                               halfbyte_moe_layer** out);

typedef struct halfbyte_moe_info {
  uint64_t struct_size;
  int64_t experts;        // of the whole layer
  int64_t local_experts;  // of this rank
  int64_t hidden;
  int64_t intermediate;
  int64_t top_k;
  int64_t weight_bytes;        // of the local experts, as stored
  const char* arithmetic;      // "w4a16", ...; valid for ever
  int32_t threads;             // of each workspace; 0 on a GPU
  int32_t static_scales;       // 1: "w4a4" with static activation scales
  int32_t routes_by_token_id;  // 1: the experts come from a table, see halfbyte_moe_route
  int32_t reserved;
  // Since version 3.
  int32_t device;  // HALFBYTE_MOE_CPU or HALFBYTE_MOE_CUDA
  int32_t device_ordinal;
  int64_t device_bytes;       // GPU memory that the layer takes; 0 on the CPU
  int64_t peak_device_bytes;  // and took while it was made: one expert, as stored, more
} halfbyte_moe_info;

// Fills *info, whose struct_size the caller has set.
HALFBYTE_MOE_API int halfbyte_moe_layer_describe(const halfbyte_moe_layer* layer,
                                                 halfbyte_moe_info* info);

// NULL is allowed.
HALFBYTE_MOE_API void halfbyte_moe_layer_destroy(halfbyte_moe_layer* layer);

// ---- Workspaces ------------------------------------------------------------------------------

// Bytes that a workspace for up to max_tokens tokens takes, of the memory of the layer's device.
HALFBYTE_MOE_API int halfbyte_moe_workspace_bytes(const halfbyte_moe_layer* layer,
                                                  int64_t max_tokens, uint64_t* bytes);

// Memory and threads for calls of up to max_tokens tokens. Serves every layer on the same device
// that is not larger in any respect, and outlives the layer it was made for.
HALFBYTE_MOE_API int halfbyte_moe_workspace_create(const halfbyte_moe_layer* layer,
                                                   int64_t max_tokens,
                                                   halfbyte_moe_workspace** out);

// NULL is allowed.
HALFBYTE_MOE_API void halfbyte_moe_workspace_destroy(halfbyte_moe_workspace* workspace);

// ---- Running ---------------------------------------------------------------------------------

enum { HALFBYTE_MOE_BF16_ROWS = 1, HALFBYTE_MOE_F32_ROWS = 2 };

typedef struct halfbyte_moe_run_arguments {
  uint64_t struct_size;
  int64_t tokens;             // 0 to the workspace's max_tokens; 0 does nothing
  int64_t top_k;              // choices per token, 1 to the layer's top_k
  const void* hidden;         // [tokens, hidden]; the models give bf16 numbers in either type; on a
                              // GPU bf16 rows, `hidden` and `out` aligned to 16 bytes
  const int32_t* topk_ids;    // [tokens, top_k] global ids; -1 and all others outside of
                              // 0..experts-1 mean no expert; an id twice counts twice
  const float* topk_weights;  // [tokens, top_k]
  void* out;                  // [tokens, hidden], every row is written; may not overlap `hidden`
  int32_t hidden_type;        // HALFBYTE_MOE_BF16_ROWS or HALFBYTE_MOE_F32_ROWS
  int32_t out_type;           // the same; sums are fp32, bf16 rounds them once
  // Since version 3: the cudaStream_t that takes the work, on the layer's GPU; NULL: its default
  // stream. Ignored on the CPU.
  void* stream;
} halfbyte_moe_run_arguments;

HALFBYTE_MOE_API int halfbyte_moe_run(const halfbyte_moe_layer* layer,
                                      halfbyte_moe_workspace* workspace,
                                      const halfbyte_moe_run_arguments* arguments);

typedef struct halfbyte_moe_route_arguments {
  uint64_t struct_size;
  int64_t tokens;            // any number
  const float* logits;       // [tokens, experts]: hidden times the router's weight, not rounded
  const int32_t* token_ids;  // [tokens]; only for layers that route by token id, else ignored. One
                             // outside of the table is refused; on a GPU, where nobody looks
                             // before, it gets ids of -1 and weights of 0
  int32_t* topk_ids;         // [tokens, top_k of the layer], written: by falling score, ties to the
                             // lower id; by table: in its order
  float* topk_weights;       // [tokens, top_k], written
  void* stream;              // since version 3, as in halfbyte_moe_run_arguments
} halfbyte_moe_route_arguments;

// Experts and weights from logits, by the layer's rule. A NaN or +infinity among the logits counts
// as the worst of its row.
HALFBYTE_MOE_API int halfbyte_moe_route(const halfbyte_moe_layer* layer,
                                        halfbyte_moe_workspace* workspace,
                                        const halfbyte_moe_route_arguments* arguments);

// ---- Counters --------------------------------------------------------------------------------

// What the activation quantizers of "w4a4" saw at one of the two products, in blocks of 16.
typedef struct halfbyte_moe_stage_counters {
  int64_t blocks;
  int64_t zero;        // all elements zero
  int64_t flushed;     // not zero, but too small for the smallest scale
  int64_t at_max;      // with the largest scale: normal for the block that holds the amax
  int64_t clipped;     // wanted a larger scale than there is: the activation scale is too small
  int64_t non_finite;  // hold NaN or infinity
  double amax;         // largest finite magnitude
} halfbyte_moe_stage_counters;

typedef struct halfbyte_moe_counters {
  uint64_t struct_size;
  halfbyte_moe_stage_counters gate_up;
  halfbyte_moe_stage_counters down;
  int64_t routed_rows;  // of halfbyte_moe_route
  int64_t bad_rows;     // of these: with a NaN or +infinity among the logits
} halfbyte_moe_counters;

// Sums over all calls, and replays of captured ones, that have finished on this layer. On a GPU
// this waits for all its work. Fills *counters, whose struct_size the caller has set.
HALFBYTE_MOE_API int halfbyte_moe_read_counters(const halfbyte_moe_layer* layer,
                                                halfbyte_moe_counters* counters);

#ifdef __cplusplus
}  // extern "C"
#endif
