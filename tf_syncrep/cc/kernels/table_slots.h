// The slots of rows, which an op sets to their initial values when it frees
// the rows.

#ifndef TF_SYNCREP_CC_KERNELS_TABLE_SLOTS_H_
#define TF_SYNCREP_CC_KERNELS_TABLE_SLOTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf_syncrep/cc/kernels/table_part.h"

namespace tf_syncrep {

// The op has inputs index, vectors, keys, uses and another one, and then the
// list `slots`; its attribute `slot_initials` has the initial values.
class TableSlots {
 public:
  static constexpr int kVectorsInput = 1;
  static constexpr int kVectors = 0;  // the place of this variable in the part

  absl::Status Read(tensorflow::OpKernelConstruction* ctx);

  // Adds the vectors, which are of this type, and the slots to a part. Errors:
  // InvalidArgument for slots of other types or another number.
  absl::Status AddTo(tensorflow::OpKernelContext* ctx,
                     tensorflow::DataType dtype, TablePart* part) const;

  // Sets the slots of a row to their initial values. The part is locked.
  void Reset(const TablePart& part, int64_t row) const;

 private:
  std::vector<double> initials_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_KERNELS_TABLE_SLOTS_H_
