// The walk over panels that the variants of packed_linear.h share. A variant is a struct, here
// called A, that knows how one tile of weights is stored, taken apart and multiplied:
//
//   kTileBytes, kXTileBytes   of a tile of 16 rows in PackedArguments::w, and of its activations
//   kParts                    of the rows, whose sums live in registers one after the other
//   Sums                      of one token and part, an aggregate of vectors
//   Store(sums, y, rows)      the parts of one token to y[0, rows)
//   Add<tokens>(tile, part, x, x_row_bytes, sums)   a tile, Packed or Unpacked, times `tokens` rows
//                             of activations, added to their sums
//
// GEMV: a few tokens take tiles apart in registers, each for itself.
//   kGemvTokens, kGemvGroup   up to so many; so many are fastest where panels are in the cache
//   Packed(tile)              a tile as stored
//   kPrefetchBytes            how far ahead of the tile at hand a decode step fetches where it
//                             fetches every line
//   AddParts(packed, x, sums) if there, a tile times one token, all parts, in place of Add
//
// GEMM: many share a strip of unpacked tiles.
//   Unpacked, Unpack(tile, unpacked)
//   kStripTiles, kChunkTokens a strip of K and a chunk of tokens whose data stay in the caches
//   kGroup                    tokens whose sums live in registers
//   MultiplyStrip<tokens>(unpacked, tiles, x, x_row_bytes, token_sums)   if there, in place of Add
//   kPanels, OnePanel         if there, unpacked[tile][panel] of so many panels at once, and the
//                             struct for one that is left over
//
// It lives in an unnamed namespace, as does this: every file compiles its own copy with its own
// flags (see the warning in kernels/simd16.h).
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/packed_linear/packed_kernels.h"

namespace halfbyte::packed_kernels {
namespace {  // NOLINT(google-build-namespaces)

template <class A>
constexpr int64_t PanelsOf() {
  if constexpr (requires { A::kPanels; }) {
    return A::kPanels;
  } else {
    return 1;
  }
}

template <class A>
struct TokenSums {
  typename A::Sums parts[A::kParts];
};

template <class A>
[[gnu::always_inline]] inline void StoreSums(const PackedArguments& a, int64_t panel, int64_t token,
                                             const TokenSums<A>& sums) {
  constexpr int64_t kRows = 16 * PanelsOf<A>();
  const int64_t rows = a.rows - panel * 16;
  A::Store(sums.parts, a.y + token * a.rows + panel * 16, rows < kRows ? rows : kRows);
}

[[gnu::always_inline]] inline void PrefetchLines(const uint8_t* first, int64_t lines) {
  for (int64_t i = 0; i < lines; ++i) {
    _mm_prefetch(reinterpret_cast<const char*>(first + i * 64), _MM_HINT_T1);
  }
}
template <class A>
[[gnu::always_inline]] inline void PrefetchTile(const uint8_t* tile) {
  PrefetchLines(tile, A::kTileBytes / 64);
}

template <class A>
constexpr bool kAddsAllParts = requires { &A::AddParts; };

// What a decode step fetches while it works on `tile`. AMD's prefetchers follow a thread's one
// stream as long as its lines come in ascending order, and fetching what they fetch anyway only
// takes buffers from the loads: they need no more than a start in every page. The stream of a small
// matrix, in the cache, is over before they are at speed. (Intel's are measured with every line
// fetched.)
template <class A>
[[gnu::always_inline]] inline void FetchAhead(const uint8_t* tile, bool every_line) {
  constexpr uintptr_t kPage = 4096;
  const uintptr_t in_page = reinterpret_cast<uintptr_t>(tile) % kPage;
  if (every_line) {
    PrefetchTile<A>(tile + A::kPrefetchBytes);
  } else if (in_page < A::kTileBytes) {
    PrefetchLines(tile + (kPage - in_page), 4);
  }
}

template <class A, int tokens>
[[gnu::always_inline]] inline void GemvPanel(const PackedArguments& a, int64_t panel) {
  // A tile that is gone through once for each part has no order of lines.
  constexpr bool kInOrder = A::kParts == 1 || kAddsAllParts<A>;
  constexpr int64_t kSmallMatrix = 512 * 1024;
  const int64_t matrix = (a.rows + 15) / 16 * a.tiles * A::kTileBytes;
  const bool every_line = !kInOrder || matrix < kSmallMatrix || __builtin_cpu_is("intel");
  const uint8_t* tile = a.w + panel * a.tiles * A::kTileBytes;
  const std::byte* x = a.x;
  typename A::Sums sums[A::kParts][tokens];
  // (In one initializer it would be a slow instruction that fills memory.)
  for (auto& part : sums) {
    for (typename A::Sums& s : part) s = typename A::Sums{};
  }
  for (int64_t i = 0; i < a.tiles; ++i, tile += A::kTileBytes, x += A::kXTileBytes) {
    FetchAhead<A>(tile, every_line);
    const typename A::Packed packed(tile);
    if constexpr (kAddsAllParts<A>) {
      A::AddParts(packed, x, sums);
    } else {
#pragma GCC unroll 2
      for (int p = 0; p < A::kParts; ++p) {
        A::template Add<tokens>(packed, p, x, a.x_row_bytes, sums[p]);
      }
    }
  }
  for (int t = 0; t < tokens; ++t) {
    TokenSums<A> token;
    for (int p = 0; p < A::kParts; ++p) token.parts[p] = sums[p][t];
    StoreSums<A>(a, panel, t, token);
  }
}

// A strip taken apart once, and the sums of a chunk of tokens over the strips.
template <class A>
struct Strip {
  typename A::Unpacked tiles[A::kStripTiles * PanelsOf<A>()];
  TokenSums<A> sums[A::kChunkTokens];
};

template <class A, int tokens>
void StripTimesGroup(const typename A::Unpacked* unpacked, int64_t tiles, const std::byte* x,
                     int64_t x_row_bytes, TokenSums<A>* token_sums) {
  if constexpr (requires { A::template MultiplyStrip<tokens>; }) {
    A::template MultiplyStrip<tokens>(unpacked, tiles, x, x_row_bytes, token_sums);
  } else {
    for (int p = 0; p < A::kParts; ++p) {
      typename A::Sums sums[tokens];
      for (int t = 0; t < tokens; ++t) sums[t] = token_sums[t].parts[p];
      for (int64_t i = 0; i < tiles; ++i) {
        A::template Add<tokens>(unpacked[i], p, x + i * A::kXTileBytes, x_row_bytes, sums);
      }
      for (int t = 0; t < tokens; ++t) token_sums[t].parts[p] = sums[t];
    }
  }
}

template <class A, int tokens>
void GemvPanels(const PackedArguments& a) {
  // The first tiles travel together, not one after the other.
  for (int64_t i = 0; i < A::kPrefetchBytes; i += A::kTileBytes) {
    PrefetchTile<A>(a.w + a.panel_begin * a.tiles * A::kTileBytes + i);
  }
  for (int64_t p = a.panel_begin; p < a.panel_end; ++p) GemvPanel<A, tokens>(a, p);
}

// StripTimesGroup<A, n>, GemvPanels<A, n> for an n that is known at run time only.
template <class A, int n = A::kGroup>
void StripTimesTokens(int64_t tokens, const typename A::Unpacked* unpacked, int64_t tiles,
                      const std::byte* x, int64_t x_row_bytes, TokenSums<A>* sums) {
  if (tokens == n) return StripTimesGroup<A, n>(unpacked, tiles, x, x_row_bytes, sums);
  if constexpr (n > 1) StripTimesTokens<A, n - 1>(tokens, unpacked, tiles, x, x_row_bytes, sums);
}
template <class A, int n = A::kGemvTokens>
void RunGemv(const PackedArguments& a) {
  if (a.tokens == n) return GemvPanels<A, n>(a);
  if constexpr (n > 1) RunGemv<A, n - 1>(a);
}

// Tokens [first, first + tokens), at most a chunk; `panel` and PanelsOf<A> - 1 after it.
template <class A>
void GemmPanel(const PackedArguments& a, int64_t panel, int64_t first, int64_t tokens,
               Strip<A>& strip) {
  for (int64_t t = 0; t < tokens; ++t) strip.sums[t] = TokenSums<A>{};
  const int64_t groups = (tokens + A::kGroup - 1) / A::kGroup;
  for (int64_t i = 0; i < a.tiles; i += A::kStripTiles) {
    const int64_t left = a.tiles - i;
    const int64_t tiles = left < A::kStripTiles ? left : A::kStripTiles;
    // The next strip, of these panels or of the next ones, travels while this one is multiplied.
    const int64_t ahead = left > A::kStripTiles ? A::kStripTiles : PanelsOf<A>() * a.tiles - i;
    for (int64_t n = 0; n < tiles; ++n) {
      for (int64_t p = 0; p < PanelsOf<A>(); ++p) {
        const uint8_t* tile = a.w + ((panel + p) * a.tiles + i + n) * A::kTileBytes;
        PrefetchTile<A>(tile + ahead * A::kTileBytes);
        A::Unpack(tile, strip.tiles[n * PanelsOf<A>() + p]);
      }
    }
    const std::byte* x = a.x + first * a.x_row_bytes + i * A::kXTileBytes;
    // Sizes of groups differ by one at most; the last one is of the largest.
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t begin = g * tokens / groups;
      const int64_t end = (g + 1) * tokens / groups;
      StripTimesTokens<A>(end - begin, strip.tiles, tiles, x + begin * a.x_row_bytes, a.x_row_bytes,
                          strip.sums + begin);
    }
  }
  for (int64_t t = 0; t < tokens; ++t) StoreSums<A>(a, panel, first + t, strip.sums[t]);
}

// Panels [begin, end), a multiple of PanelsOf<A> of them.
template <class A>
void GemmPanels(const PackedArguments& a, int64_t begin, int64_t end) {
  Strip<A> strip;
  for (int64_t first = 0; first < a.tokens; first += A::kChunkTokens) {
    const int64_t tokens = a.tokens - first < A::kChunkTokens ? a.tokens - first : A::kChunkTokens;
    for (int64_t p = begin; p < end; p += PanelsOf<A>()) GemmPanel<A>(a, p, first, tokens, strip);
  }
}

template <class A>
void RunGemm(const PackedArguments& a) {
  const int64_t left_over = (a.panel_end - a.panel_begin) % PanelsOf<A>();
  GemmPanels<A>(a, a.panel_begin, a.panel_end - left_over);
  if constexpr (PanelsOf<A>() > 1) {
    if (left_over > 0) GemmPanels<typename A::OnePanel>(a, a.panel_end - left_over, a.panel_end);
  }
}

// Any number of tokens: many in groups that take a few panels at a time from the cache.
template <class A>
void RunGemvGroups(const PackedArguments& a) {
  constexpr int64_t kCached = 256 * 1024;
  const int64_t panels = std::max<int64_t>(1, kCached / (a.tiles * A::kTileBytes));
  const int64_t groups =
      a.tokens <= A::kGemvTokens ? 1 : (a.tokens + A::kGemvGroup - 1) / A::kGemvGroup;
  PackedArguments part = a;
  for (int64_t p = a.panel_begin; p < a.panel_end; p += panels) {
    part.panel_begin = p;
    part.panel_end = std::min(p + panels, a.panel_end);
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t first = g * a.tokens / groups;
      part.tokens = (g + 1) * a.tokens / groups - first;
      part.x = a.x + first * a.x_row_bytes;
      part.y = a.y + first * a.rows;
      RunGemv<A>(part);
    }
  }
}

// GEMV of `Few`, for more tokens GEMM of `Many`.
template <class Few, class Many = Few>
void RunPanels(const PackedArguments& a) {
  (a.tokens <= Few::kGemvTokens ? RunGemv<Few> : RunGemm<Many>)(a);
}

}  // namespace
}  // namespace halfbyte::packed_kernels
