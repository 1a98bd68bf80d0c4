// What draws are made from, plain and filtered ones.
#pragma once

#include <cstdint>

namespace micro_vllm {

struct Draws {  // N rows
  const float* logits;  // row r begins at logits + r * stride
  int64_t stride, vocabulary;
  const int64_t *rows, *likeliest;  // (N): index of the row, token id of its maximum
  const float* temperature;         // (N)
  const int64_t* top_k;             // (N), 0 is off
  const double *top_p, *min_p;      // (N), 1 and 0 are off; these and top_k are null in plain draws
  const int64_t *seeds, *output_index;
  int64_t count;
};

}  // namespace micro_vllm
