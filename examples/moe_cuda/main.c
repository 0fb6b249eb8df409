// moe_c on a GPU: five tokens through one mixture-of-experts layer of a checkpoint. Routing and
// layer go into one stream; nothing waits until the results are fetched.
//
//   moe_cuda MODEL_DIR [LAYER [ARITHMETIC]]       moe_cuda models/tiny-v4-nvfp4 0 w4a16
#include <cuda_runtime_api.h>
#include <halfbyte/moe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kTokens = 5 };

static void Check(int code) {
  if (code == HALFBYTE_MOE_OK) return;
  fprintf(stderr, "moe_cuda: %s\n", halfbyte_moe_last_error());
  exit(1);
}

static void CheckCuda(cudaError_t error) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "moe_cuda: %s\n", cudaGetErrorString(error));
  exit(1);
}

static void* Allocate(size_t bytes) {
  void* memory = calloc(bytes, 1);
  if (memory == NULL) exit(1);
  return memory;
}

static void* AllocateOnGpu(size_t bytes) {
  void* memory = NULL;
  CheckCuda(cudaMalloc(&memory, bytes));
  return memory;
}

static void* CopyToGpu(const void* from, size_t bytes) {
  void* memory = AllocateOnGpu(bytes);
  CheckCuda(cudaMemcpy(memory, from, bytes, cudaMemcpyHostToDevice));
  return memory;
}

static uint16_t Bf16(float x) {  // of numbers that it holds exactly
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return (uint16_t)(bits >> 16);
}

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: moe_cuda MODEL_DIR [LAYER [ARITHMETIC]]\n");
    return 2;
  }
  halfbyte_moe_options options = HALFBYTE_MOE_INIT(halfbyte_moe_options);
  options.device = HALFBYTE_MOE_CUDA;
  if (argc > 3) options.arithmetic = argv[3];
  halfbyte_moe_layer* layer = NULL;
  Check(halfbyte_moe_layer_open(argv[1], argc > 2 ? atoi(argv[2]) : 0, &options, &layer));
  halfbyte_moe_workspace* workspace = NULL;
  Check(halfbyte_moe_workspace_create(layer, kTokens, &workspace));
  halfbyte_moe_info info = HALFBYTE_MOE_INIT(halfbyte_moe_info);
  Check(halfbyte_moe_layer_describe(layer, &info));

  // Made-up numbers, where a model has its own in GPU memory already.
  const size_t hidden_count = (size_t)(kTokens * info.hidden);
  const size_t logit_count = (size_t)(kTokens * info.experts);
  const size_t choice_count = (size_t)(kTokens * info.top_k);
  uint16_t* rows = Allocate(hidden_count * sizeof(uint16_t));
  float* row_logits = Allocate(logit_count * sizeof(float));
  for (size_t i = 0; i < hidden_count; ++i) rows[i] = Bf16((float)(i % 31) / 16 - 1);
  for (size_t i = 0; i < logit_count; ++i) row_logits[i] = (float)(i * 7 % 23) / 8;
  const int32_t tokens[kTokens] = {0, 1, 2, 3, 4};  // some layers route by them
  void* hidden = CopyToGpu(rows, hidden_count * sizeof(uint16_t));
  float* logits = CopyToGpu(row_logits, logit_count * sizeof(float));
  int32_t* token_ids = CopyToGpu(tokens, sizeof(tokens));
  int32_t* ids = AllocateOnGpu(choice_count * sizeof(int32_t));
  float* weights = AllocateOnGpu(choice_count * sizeof(float));
  float* out = AllocateOnGpu(hidden_count * sizeof(float));
  cudaStream_t stream;
  CheckCuda(cudaStreamCreate(&stream));

  halfbyte_moe_route_arguments route = HALFBYTE_MOE_INIT(halfbyte_moe_route_arguments);
  route.tokens = kTokens;
  route.logits = logits;
  route.token_ids = token_ids;
  route.topk_ids = ids;
  route.topk_weights = weights;
  route.stream = stream;
  Check(halfbyte_moe_route(layer, workspace, &route));

  halfbyte_moe_run_arguments run = HALFBYTE_MOE_INIT(halfbyte_moe_run_arguments);
  run.tokens = kTokens;
  run.top_k = info.top_k;
  run.hidden = hidden;
  run.hidden_type = HALFBYTE_MOE_BF16_ROWS;
  run.topk_ids = ids;
  run.topk_weights = weights;
  run.out = out;
  run.out_type = HALFBYTE_MOE_F32_ROWS;
  run.stream = stream;
  Check(halfbyte_moe_run(layer, workspace, &run));

  CheckCuda(cudaStreamSynchronize(stream));
  float* results = Allocate(hidden_count * sizeof(float));
  int32_t* chosen = Allocate(choice_count * sizeof(int32_t));
  CheckCuda(cudaMemcpy(results, out, hidden_count * sizeof(float), cudaMemcpyDeviceToHost));
  CheckCuda(cudaMemcpy(chosen, ids, choice_count * sizeof(int32_t), cudaMemcpyDeviceToHost));
  for (int64_t t = 0; t < kTokens; ++t) {
    printf("token %d, experts", (int)t);
    for (int64_t j = 0; j < info.top_k; ++j) printf(" %d", (int)chosen[t * info.top_k + j]);
    printf(":");
    for (int64_t n = 0; n < 4; ++n) printf(" %.6g", (double)results[t * info.hidden + n]);
    printf(" ...\n");
  }
  free(chosen);
  free(results);
  free(row_logits);
  free(rows);
  void* on_gpu[] = {hidden, logits, token_ids, ids, weights, out};
  for (size_t i = 0; i < sizeof(on_gpu) / sizeof(on_gpu[0]); ++i) cudaFree(on_gpu[i]);
  cudaStreamDestroy(stream);
  halfbyte_moe_workspace_destroy(workspace);
  halfbyte_moe_layer_destroy(layer);
  return 0;
}
