// The maximum of each row of logits and the first id that has it, NaN if there is one: of rows in memory, or while they
// are computed, by several threads that have a part of the columns each.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "simd.h"

namespace micro_vllm {

constexpr int64_t kBlock = 1024;  // columns: only so many are looked through once more, for the place

struct Best {
  float score;
  int64_t token;
};

// Of one row, from left to right.
class RunningMaximum {
 public:
  // 32 columns; those from `valid` on do not count.
  void take(int64_t column, __m512 x, __m512 y, int64_t valid) {
    if (column - start_ >= kBlock) settle(column);
    if (column + 32 > valid) {
      x = among(x, valid - column);
      y = among(y, valid - column - 16);
    }
    nan_ |= _mm512_cmp_ps_mask(x, y, _CMP_UNORD_Q);
    most_ = _mm512_max_ps(most_, _mm512_max_ps(x, y));
  }

  // x: the row, of which first .. last - 1 were taken, as far as they count.
  Best result(const float* x, int64_t first, int64_t last) {
    if (last <= first) return {-INFINITY, first};
    if (nan_) {
      const float* nan = std::find_if(x + first, x + last, [](float v) { return std::isnan(v); });
      return {*nan, nan - x};
    }
    settle(last);
    return {top_, std::find(x + std::max(begin_, first), x + last, top_) - x};
  }

 private:
  static __m512 among(__m512 x, int64_t count) {
    const __mmask16 here = count >= 16 ? 0xffff : count > 0 ? (1u << count) - 1 : 0;
    return _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), here, x);
  }

  void settle(int64_t column) {
    const float its_top = _mm512_reduce_max_ps(most_);
    if (its_top > top_) {
      top_ = its_top;
      begin_ = start_;
    }
    most_ = _mm512_set1_ps(-INFINITY);
    start_ = column;
  }

  __m512 most_ = _mm512_set1_ps(-INFINITY);  // since `start_`
  int64_t start_ = 0, begin_ = 0;
  float top_ = -INFINITY;
  __mmask16 nan_ = 0;
};

// Of x[first] .. x[last - 1], which are in memory.
inline Best first_maximum(const float* x, int64_t first, int64_t last) {
  auto load = [=](int64_t at) {
    const __mmask16 here = last - at >= 16 ? 0xffff : last > at ? (1u << (last - at)) - 1 : 0;
    return _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), here, x + at);
  };
  RunningMaximum found;
  for (int64_t at = first; at < last; at += 32) found.take(at, load(at), load(at + 16), last);
  return found.result(x, first, last);
}

// What each of `parts` threads has found in its columns, (N, parts), to what is true of the N rows.
inline void join_maxima(const std::vector<Best>& found, int64_t parts, float* maxima, int64_t* ids) {
  for (size_t row = 0; row * parts < found.size(); ++row) {
    Best best = found[row * parts];
    for (int64_t part = 1; part < parts && !std::isnan(best.score); ++part) {
      const Best& other = found[row * parts + part];
      if (other.score > best.score || std::isnan(other.score)) best = other;
    }
    maxima[row] = best.score;
    ids[row] = best.token;
  }
}

}  // namespace micro_vllm
