// Attention over the paged cache, straight from its blocks: nothing is gathered, and no mask is ever built.
//
// A task is one kv head and up to kQueries consecutive tokens of one request: their query heads read the same keys, 16
// at a time, with a running maximum and sum (https://arxiv.org/abs/2205.14135). A decode over a long context is cut
// into parts along the keys, so that all threads have work; parts are joined at the end.
#pragma once

#include <algorithm>
#include <cmath>

#include "simd.h"

namespace micro_vllm {

constexpr int kQueries = 4;
constexpr int kMaxRows = 32;  // query heads of one task

struct Cache {         // one layer's keys and values: slot s, kv head h, element d lie at (s * heads + h) * dim + d
  bf16 *keys, *values;
  int64_t block_size, heads, dim;
};

struct Row {           // one query head of one token
  const bf16* query;   // (D)
  int64_t first, last; // positions it sees: first .. last - 1
  float* out;          // (D) sum of weighted values, not divided by `sum` yet
  float max, sum;
};

inline int64_t slot_of(const Cache& cache, const int64_t* table, int64_t position) {
  const int64_t block = position / cache.block_size;
  return table[block] * cache.block_size + position - block * cache.block_size;
}

// Asks memory for the keys and values of 16 positions. Those of one head lie apart, and blocks lie anywhere, which the
// processor's own look-ahead does not follow. (Not inlined, GCC takes it for a function without effects and drops it.)
template <int D>
[[gnu::always_inline]] inline void ask_for(const Cache& cache, int64_t head, const int64_t* table, int64_t at) {
  const int64_t stride = cache.heads * D, first = slot_of(cache, table, at) * stride + head * D;
  for (int64_t j = 0; j < 16; ++j)
    for (int64_t d = first + j * stride; d < first + j * stride + D; d += 32) {
      _mm_prefetch(cache.keys + d, _MM_HINT_T0);
      _mm_prefetch(cache.values + d, _MM_HINT_T0);
    }
}

// Adds the positions begin .. end - 1 to every row. D is a multiple of 32.
template <int D>
inline void attend(Row* rows, int num_rows, const Cache& cache, int64_t head, const int64_t* table, int64_t begin,
                   int64_t end, float scale) {
  constexpr int kVectors = D / 16;
  const int64_t stride = cache.heads * D;
  alignas(64) float values[16 * D];
  for (int64_t at = begin; at < end;) {
    const int64_t block = at / cache.block_size;
    const int64_t stop = std::min(end, (block + 1) * cache.block_size);
    const int n = static_cast<int>(std::min<int64_t>(16, stop - at));
    const int64_t slot = slot_of(cache, table, at);
    const bf16* key = cache.keys + slot * stride + head * D;
    const bf16* value = cache.values + slot * stride + head * D;
    if (at + n < end) ask_for<D>(cache, head, table, at + n);
    for (int j = 0; j < n; ++j)
      each<kVectors>(EACH(d) { _mm512_store_ps(values + j * D + 16 * d, load_bf16(value + j * stride + 16 * d)); });

    for (int r = 0; r < num_rows; ++r) {
      Row& row = rows[r];
      // Slots outside are read (they exist: short tiles repeat their last key) and given the weight 0 below.
      const int64_t low = std::max<int64_t>(0, row.first - at), high = std::min<int64_t>(n, row.last - at);
      if (high <= low) continue;
      const __mmask16 seen = static_cast<__mmask16>(((1u << high) - 1) & ~((1u << low) - 1));
      __m512 dots[16];
#ifdef __AVX512BF16__
      __m512bh query[D / 32];
      each<D / 32>(EACH(c) { query[c] = (__m512bh)_mm512_loadu_si512(row.query + 32 * c); });
      each<16>(EACH(j) {
        const bf16* k = key + std::min<int>(j, n - 1) * stride;
        dots[j] = _mm512_setzero_ps();
        each<D / 32>(EACH(c) { dots[j] = _mm512_dpbf16_ps(dots[j], query[c], (__m512bh)_mm512_loadu_si512(k + 32 * c)); });
      });
#else
      __m512 query[kVectors];
      each<kVectors>(EACH(c) { query[c] = load_bf16(row.query + 16 * c); });
      each<16>(EACH(j) {
        const bf16* k = key + std::min<int>(j, n - 1) * stride;
        dots[j] = _mm512_setzero_ps();
        each<kVectors>(EACH(c) { dots[j] = _mm512_fmadd_ps(query[c], load_bf16(k + 16 * c), dots[j]); });
      });
#endif
      __m512 score = _mm512_mask_mul_ps(_mm512_set1_ps(-INFINITY), seen, sums(dots), _mm512_set1_ps(scale));
      __m512 out[kVectors];
      each<kVectors>(EACH(d) { out[d] = _mm512_loadu_ps(row.out + 16 * d); });
      const float top = _mm512_reduce_max_ps(score);
      if (top > row.max) {
        const __m512 shrink = exp16(_mm512_set1_ps(row.max - top));
        row.sum *= _mm512_cvtss_f32(shrink);
        each<kVectors>(EACH(d) { out[d] = _mm512_mul_ps(out[d], shrink); });
        row.max = top;
      }
      score = _mm512_maskz_mov_ps(seen, exp16(_mm512_sub_ps(score, _mm512_set1_ps(row.max))));
      row.sum += _mm512_reduce_add_ps(score);
      alignas(64) float weight[16];
      _mm512_store_ps(weight, score);
      for (int64_t j = low; j < high; ++j) {
        const __m512 p = _mm512_set1_ps(weight[j]);
        each<kVectors>(EACH(d) { out[d] = _mm512_fmadd_ps(p, _mm512_load_ps(values + j * D + 16 * d), out[d]); });
      }
      each<kVectors>(EACH(d) { _mm512_storeu_ps(row.out + 16 * d, out[d]); });
    }
    at += n;
  }
}

}  // namespace micro_vllm
