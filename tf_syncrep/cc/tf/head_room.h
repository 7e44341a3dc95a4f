// Room in front of the rows of a tensor, for what will be sent with them.

#ifndef TF_SYNCREP_CC_TF_HEAD_ROOM_H_
#define TF_SYNCREP_CC_TF_HEAD_ROOM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.pb.h"

namespace tf_syncrep {

// Returns the rows of a matrix from `first_row`, at most its number of rows,
// on. They share its memory.
tensorflow::Tensor RowsFrom(const tensorflow::Tensor& matrix,
                            int64_t first_row);

// Allocates a matrix of `num_rows` rows for an output. There is room for
// `head_rows` more rows in front of it, in the same memory. An error names
// `head_rows` if there cannot be so many, or if rows would not be aligned
// behind them.
absl::Status AllocateWithHeadRoom(tensorflow::OpKernelContext* ctx,
                                  tensorflow::DataType dtype, int64_t head_rows,
                                  int64_t num_rows, int64_t width,
                                  tensorflow::Tensor* rows);

// Allocates a matrix of `head_rows` rows and, behind them, those of input
// `index`, which must be a matrix. It is made in the input's own memory if
// there is room and nobody else holds that memory; otherwise the rows are
// copied. The first `head_rows` rows are arbitrary.
absl::Status ExtendIntoHeadRoom(tensorflow::OpKernelContext* ctx, int index,
                                int64_t head_rows, tensorflow::Tensor* result);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_TF_HEAD_ROOM_H_
