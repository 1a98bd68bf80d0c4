// One draw a row after min_p, then top_k, then top_p, by the rules of sampling/truncation.py.
//
// Nothing is sorted but what can stay: candidates above a cutoff that surely keeps whatever the filters keep are put into
// a heap and taken out likeliest first, until the filters are satisfied; the same noise as everywhere decides among them.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "draws.h"
#include "noise.h"
#include "simd.h"

using namespace micro_vllm;

namespace {

constexpr float kNear = -7.0f;     // first guess of how far the nucleus reaches below the likeliest token, in nats
constexpr int64_t kBins = 1024;    // of the search for the top_k cutoff
constexpr float kBinsPerNat = 32;

struct Candidate {
  float scaled;
  int32_t token;

  bool operator<(const Candidate& other) const {  // less likely; of equals the larger id
    return scaled < other.scaled || (scaled == other.scaled && token > other.token);
  }
};

struct Row {
  const float* logits;
  int64_t vocabulary;
  float top, temperature;

  // Sixteen logits from `at` on, shifted so that the maximum is 0, over the temperature; -inf behind the end.
  __m512 scaled(int64_t at) const {
    const __mmask16 here = vocabulary - at >= 16 ? 0xffff : (1u << (vocabulary - at)) - 1;
    _mm_prefetch(logits + at + kAhead, _MM_HINT_T0);
    const __m512 x = _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), here, logits + at);
    return _mm512_div_ps(_mm512_sub_ps(x, _mm512_set1_ps(top)), _mm512_set1_ps(temperature));
  }

  // Mass of the whole vocabulary, the likeliest token's being 1.
  double mass() const {
    double sum = 0;
    for (int64_t block = 0; block < vocabulary; block += 1024) {
      __m512 part = _mm512_setzero_ps();
      for (int64_t at = block; at < std::min(block + 1024, vocabulary); at += 16) {
        const __m512 v = scaled(at);
        const __mmask16 any = _mm512_cmp_ps_mask(v, _mm512_set1_ps(-87.0f), _CMP_GT_OQ);
        part = _mm512_add_ps(part, _mm512_maskz_mov_ps(any, exp16(v)));
      }
      sum += _mm512_reduce_add_ps(part);
    }
    return sum;
  }

  // A value that at least k tokens reach; -inf if that is not known.
  float reached_by(int64_t k) const {
    std::vector<int64_t> bins(kBins);
    for (int64_t at = 0; at < vocabulary; at += 16) {
      const __m512 v = _mm512_mul_ps(scaled(at), _mm512_set1_ps(-kBinsPerNat));
      __mmask16 open = _mm512_cmp_ps_mask(v, _mm512_set1_ps(kBins), _CMP_LT_OQ);
      alignas(64) int32_t bin[16];
      _mm512_store_si512(bin, _mm512_cvttps_epi32(v));
      for (; open; open &= open - 1) ++bins[bin[__builtin_ctz(open)]];
    }
    int64_t seen = 0;
    for (int64_t i = 0; i < kBins; ++i)
      if ((seen += bins[i]) >= k) return -static_cast<float>(i + 1) / kBinsPerNat;
    return -INFINITY;
  }

  void collect(float cutoff, std::vector<Candidate>& found) const {
    found.clear();
    for (int64_t at = 0; at < vocabulary; at += 16) {
      const __m512 v = scaled(at);
      __mmask16 open = _mm512_cmp_ps_mask(v, _mm512_set1_ps(cutoff), _CMP_GE_OQ) &
                       _mm512_cmp_ps_mask(v, _mm512_set1_ps(-INFINITY), _CMP_GT_OQ);
      if (!open) continue;
      alignas(64) float value[16];
      _mm512_store_ps(value, v);
      for (; open; open &= open - 1) {
        const int lane = __builtin_ctz(open);
        found.push_back({value[lane], static_cast<int32_t>(at + lane)});
      }
    }
  }
};

int64_t draw(const Row& row, int64_t top_k, double top_p, double min_p, uint64_t key, std::vector<Candidate>& found) {
  const float least = min_p > 0 ? static_cast<float>(std::log(min_p)) : -INFINITY;
  // With min_p or top_k the mass that top_p counts in is that of what these keep; with top_p alone, of everything.
  const bool only_top_p = top_k == 0 && min_p == 0;
  double whole = 0;
  if (only_top_p) {
    whole = row.mass();
    row.collect(kNear, found);
    double near = 0;
    for (const Candidate& c : found) near += std::exp(static_cast<double>(c.scaled));
    if (near <= top_p * whole * (1 + 1e-6)) {
      // Tokens below (1 - top_p) * whole / V each weigh less than (1 - top_p) * whole together.
      const double far = std::log((1 - top_p) * whole / row.vocabulary) - 1e-3;
      row.collect(std::min(kNear, static_cast<float>(far)), found);
    }
  } else {
    row.collect(top_k ? std::max(least, row.reached_by(top_k)) : least, found);
  }

  std::make_heap(found.begin(), found.end());
  auto end = found.end();  // behind it, likeliest last, stand those that stay
  double mass = 0;
  for (int64_t taken = 0; end != found.begin(); ++taken) {
    if (top_k && taken == top_k) break;
    if (only_top_p && taken && mass >= top_p * whole) break;
    std::pop_heap(found.begin(), end--);
    mass += std::exp(static_cast<double>(end->scaled));
  }
  const bool is_cut = top_p < 1 && !only_top_p;
  const double limit = is_cut ? top_p * mass : INFINITY;
  double before = 0;
  float best = -INFINITY;
  int64_t winner = found.back().token;
  for (auto c = found.end(); c-- != end;) {
    if (c + 1 != found.end() && before >= limit) break;
    before += std::exp(static_cast<double>(c->scaled));
    const float score = c->scaled + gumbel(uniform(key, c->token));
    if (score > best) {
      best = score;
      winner = c->token;
    }
  }
  return winner;
}

}  // namespace

extern "C" void mv_draw_filtered(const Draws* draws, int64_t threads) {
  const Draws& d = *draws;
#pragma omp parallel num_threads(d.count > 1 ? threads : 1)
  {
    std::vector<Candidate> found;
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < d.count; ++i) {
      const int64_t r = d.rows[i];
      const float* logits = d.logits + r * d.stride;
      const Row row{logits, d.vocabulary, logits[d.tokens[r]], d.temperature[i]};
      d.tokens[r] = draw(row, d.top_k[i], d.top_p[i], d.min_p[i], key_of(d.seeds[i], d.output_index[r]), found);
    }
  }
}
