// What draws are made from, plain and filtered ones.
#pragma once

#include <cstdint>

namespace micro_vllm {

// Logits to ask for before they are needed: those of many rows lie in no cache any more, and the processor's own
// look-ahead ends with a page.
constexpr int64_t kAhead = 2048;

struct Draws {  // n of N rows
  const float* logits;         // row r begins at logits + r * stride
  int64_t stride, vocabulary;
  const int64_t* rows;         // (n)
  int64_t* tokens;             // (N), token ids: of the maxima on entry, what was drawn on return
  const float* temperature;    // (n)
  const int64_t* top_k;        // (n), 0 is off
  const double *top_p, *min_p; // (n), 1 and 0 are off; these and top_k are null in plain draws
  const int64_t* seeds;        // (n)
  const int64_t* output_index; // (N)
  int64_t count;               // n
};

}  // namespace micro_vllm
